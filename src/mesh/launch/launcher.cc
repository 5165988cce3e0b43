#include "mesh/launch/launcher.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <ranges>
#include <set>
#include <sstream>

#include "base/check.h"
#include "base/printable.h"
#include "mesh/launch/rank_process.h"
#include "mesh/network.h"
#include "mesh/secret.h"

extern char** environ;

namespace tandem::mesh {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kKilledCode = 3;
constexpr int kExitOfSignals = 128;
// A rank that dies takes others with it within milliseconds, so the first one is determined when those are seen too.
constexpr auto kSettle = std::chrono::milliseconds(200);
// A rank that ends with 3 may have seen a peer close its connections that has not ended yet: on a busy machine a
// process takes seconds from its last word to its end.
constexpr std::chrono::milliseconds kSettleOfThree = std::chrono::seconds(5);
// Ranks that stop together save what they have and sync it, each in its own time.
constexpr std::chrono::milliseconds kSettleOfStop = std::chrono::seconds(30);
constexpr std::chrono::milliseconds kBetweenLooksAtBeats(500);

// The signals that a launcher waits for, blocked while this lives, as a descriptor.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGTSTP, SIGCHLD}) sigaddset(&set_, signal);
    struct sigaction before = {};
    sigaction(SIGHUP, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaddset(&set_, SIGHUP);  // nohup
    struct sigaction by_default = {};
    by_default.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &by_default, &child_before_);  // ignored, children would vanish before they are looked at
    sigprocmask(SIG_BLOCK, &set_, &mask_before_);
    descriptor_ = OwnedDescriptor(signalfd(-1, &set_, SFD_NONBLOCK | SFD_CLOEXEC));
  }
  ~Signals() {
    sigaction(SIGCHLD, &child_before_, nullptr);
    sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int descriptor() const { return descriptor_.get(); }
  // Returns the next signal that has come; 0: none.
  int take() const {
    signalfd_siginfo info = {};
    return read(descriptor_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t set_ = {}, mask_before_ = {};
  struct sigaction child_before_ = {};
  OwnedDescriptor descriptor_;
};

// Returns our environment, with the variables that say which rank it is. `id` is the launch's.
std::vector<std::string> environment_of(const LaunchPlan& plan, const std::string& id, int local_rank, int port,
                                        int store) {
  std::vector<std::string> set = {
      fmt::format("RANK={}", plan.host * plan.ranks_per_host + local_rank),
      fmt::format("WORLD_SIZE={}", plan.num_hosts * plan.ranks_per_host),
      fmt::format("LOCAL_RANK={}", local_rank),
      fmt::format("LOCAL_WORLD_SIZE={}", plan.ranks_per_host),
      "TANDEM_LAUNCH=" + id,
  };
  if (plan.num_hosts > 1) {
    set.push_back("MASTER_ADDR=" + plan.master_address);
    set.push_back(fmt::format("MASTER_PORT={}", port));
  }
  if (store >= 0) set.push_back(fmt::format("TANDEM_STORE_FD={}", store));
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name = std::string(*entry).substr(0, std::string(*entry).find('='));
    const auto is_name = [&](const std::string& variable) { return variable.starts_with(name + "="); };
    const bool is_ours = name == "TANDEM_STORE_FD" || name == "TANDEM_LAUNCHER_FD" || name == "MASTER_ADDR" ||
                         name == "MASTER_PORT" || name.starts_with("TORCHELASTIC_");
    if (!is_ours && std::ranges::none_of(set, is_name)) result.emplace_back(*entry);
  }
  result.insert(result.end(), set.begin(), set.end());
  return result;
}

class Launcher {
 public:
  explicit Launcher(const LaunchPlan& plan) : plan_(plan), is_stdin_open_(plan.ends_with_stdin) {}

  LaunchEnd run() {
    start();
    while (num_running() > 0) {
      wait();
      obey_signals();
      for (const auto& rank : ranks_) rank->look();
      look_at_workers();
      look_at_stdin();
      watch_ranks();
      insist();
      if (num_running() < static_cast<int>(ranks_.size())) end_others_of_a_failure();
    }
    LaunchEnd result = end();
    const bool has_stdin_ended = plan_.ends_with_stdin && !is_stdin_open_;
    const bool was_stopped = !result.failed && result.code != 0;
    result.was_told_to_stop = !passed_on_.empty() || has_stdin_ended || was_stopped;
    return result;
  }

 private:
  void start() {
    OwnedDescriptor store;
    if (plan_.num_hosts > 1 && plan_.host == 0)
      store = listen_for_ranks(plan_.master_address, plan_.master_port, plan_.timeout_s);
    const std::string id = random_digits();
    for (int i = 0; i < plan_.ranks_per_host; ++i) {
      const bool is_first = plan_.host == 0 && i == 0;
      const int store_of_it = is_first ? store.get() : -1;
      ranks_.push_back(std::make_unique<RankProcess>(plan_.command, plan_.shown_as,
                                                     environment_of(plan_, id, i, plan_.master_port, store_of_it),
                                                     /*output_is_kept=*/!is_first, store_of_it));
    }
    if (plan_.num_workers == 0) ranks_.front()->link().close();
  }

  int num_running() const {
    return static_cast<int>(std::ranges::count_if(ranks_, [](const auto& rank) { return !rank->status(); }));
  }

  int number_of(int place) const { return plan_.host * plan_.ranks_per_host + place; }
  int num_ranks() const { return plan_.num_hosts * plan_.ranks_per_host; }
  int num_trainers() const { return static_cast<int>(ranks_.size()) - plan_.num_workers; }

  // Workers end when rank 0 has; one that fails before is shown, and the others continue.
  void look_at_workers() {
    if (plan_.num_workers == 0) return;
    const auto has_ended = [](const auto& rank) { return rank->status().has_value(); };
    const bool others_ended =
        num_trainers() > 0 && std::all_of(ranks_.begin(), ranks_.begin() + num_trainers(), has_ended);
    for (int i = num_trainers(); i < static_cast<int>(ranks_.size()); ++i) {
      const RankProcess& worker = *ranks_[static_cast<size_t>(i)];
      if (!worker.status() || !told_.insert(i).second) continue;
      ranks_.front()->link().tell(end_of(i, worker));
      if (!others_ended && !culprit_ && !ended_well(*worker.status())) say(i, worker);
    }
    if (std::ssize(told_) == plan_.num_workers) ranks_.front()->link().close();
    // Rank 0 on another host may still say goodbye to those that are here.
    if (plan_.host > 0 || !others_ended || num_running() == 0) return;
    if (!workers_deadline_) workers_deadline_ = Clock::now() + plan_.grace;
    if (Clock::now() < *workers_deadline_) return;
    for (int i = num_trainers(); i < static_cast<int>(ranks_.size()); ++i)
      ranks_[static_cast<size_t>(i)]->signal(SIGKILL);
    workers_deadline_ = Clock::now() + plan_.grace;
  }

  void look_at_stdin() {
    if (!is_stdin_open_) return;
    pollfd polled = {STDIN_FILENO, POLLIN, 0};
    if (poll(&polled, 1, 0) <= 0) return;
    std::array<char, 256> ignored;
    is_stdin_open_ = read(STDIN_FILENO, ignored.data(), ignored.size()) > 0;
    if (is_stdin_open_ || !passed_on_.empty()) return;
    for (const auto& rank : ranks_) rank->signal(SIGKILL);
  }

  // A rank that is silent for too long is killed.
  void watch_ranks() {
    for (int i = 0; i < static_cast<int>(ranks_.size()); ++i) {
      RankProcess& rank = *ranks_[static_cast<size_t>(i)];
      const bool is_frozen = !rank.status() && rank.link().is_silent_for(plan_.timeout_s);
      if (is_frozen && frozen_.insert(i).second) rank.signal(SIGKILL);
    }
  }

  // Ranks that were told twice to end and do not react are killed.
  void insist() {
    if (!insist_deadline_ || Clock::now() < *insist_deadline_) return;
    for (const auto& rank : ranks_) rank->signal(SIGKILL);
    insist_deadline_ = Clock::now() + plan_.grace;
  }

  void say(int place, const RankProcess& worker) const {
    show(number_of(place), worker.last_output());
    const bool is_last = std::ssize(told_) == plan_.num_workers;
    std::fprintf(stderr, "tandem: warning: rank %d of %d, which only samples, %s%s\n", number_of(place), num_ranks(),
                 how_it_ended(place).c_str(), is_last ? "" : "; the others continue");
  }

  // Returns how a worker ended, with its last output.
  WorkerEnd end_of(int place, const RankProcess& worker) const {
    std::istringstream lines(worker.last_output());
    std::string last;
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty()) last = line;
    }
    constexpr std::string_view kError = "tandem: error: ";
    if (last.starts_with(kError)) last.erase(0, kError.size());
    return {.code = code_of(*worker.status()),
            .how = fmt::format("rank {} of {} {}{}{}", number_of(place), num_ranks(), how_it_ended(place),
                               last.empty() ? "" : ": ", last)};
  }

  // Says how the rank at that place on this host ended.
  std::string how_it_ended(int place) const {
    if (frozen_.contains(place))
      return fmt::format(
          "has said nothing for {:g} s (--distributed-timeout-minutes): it was stopped or frozen, and "
          "was killed",
          plan_.timeout_s);
    const int status = *ranks_[static_cast<size_t>(place)]->status();
    return WIFSIGNALED(status) ? fmt::format("was killed by signal {}", WTERMSIG(status))
                               : fmt::format("exited with code {}", WEXITSTATUS(status));
  }

  void wait() {
    std::vector<pollfd> polled = {{signals_.descriptor(), POLLIN, 0}};
    if (is_stdin_open_) polled.push_back({STDIN_FILENO, POLLIN, 0});
    const size_t first_rank = polled.size();
    for (const auto& rank : ranks_) polled.push_back({rank->output(), POLLIN, 0});  // -1 is skipped
    if (poll(polled.data(), polled.size(), patience_ms()) <= 0) return;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (polled[first_rank + i].revents != 0) ranks_[i]->read_output();
    }
  }

  // Returns the time until something is due.
  int patience_ms() const {
    int64_t patience = kBetweenLooksAtBeats.count();
    for (const auto& deadline : {next_deadline_, workers_deadline_, insist_deadline_}) {
      if (!deadline) continue;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
      patience = std::min(patience, std::max<int64_t>(left.count(), 0));
    }
    return static_cast<int>(patience);
  }

  void obey_signals() {
    for (int signal = signals_.take(); signal != 0; signal = signals_.take()) {
      if (signal == SIGCHLD) continue;
      if (signal == SIGTSTP) {  // Ctrl-Z; we continue when `fg` wakes us
        for (const auto& rank : ranks_) rank->signal(SIGSTOP);
        raise(SIGSTOP);
        for (const auto& rank : ranks_) rank->signal(SIGCONT);
        continue;
      }
      if (!passed_on_.empty() && !insist_deadline_) insist_deadline_ = Clock::now() + plan_.grace;
      passed_on_.insert(signal);
      for (const auto& rank : ranks_) {
        kill_one(*rank, signal);
        kill_one(*rank, SIGCONT);  // a stopped process would not get the signal
      }
    }
  }

  // Sends the signal to the rank alone, which itself ends the processes that it has started.
  static void kill_one(const RankProcess& rank, int signal) {
    if (!rank.status()) kill(rank.pid(), signal);
  }

  // Returns whether a rank ended with 0, or with the code or signal of a stop that we passed on.
  bool ended_well(int status) const {
    const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) - kExitOfSignals;
    return status == 0 || passed_on_.count(signal) > 0;
  }

  // Returns whether a rank ended with the code of a stop. A signal that one rank got, here or on another host, stops
  // all of a run, and each ends with its code (docs/RUNS.md).
  static bool was_stopped(int status) {
    return WIFEXITED(status) && std::ranges::any_of(std::array{SIGHUP, SIGINT, SIGTERM}, [status](int signal) {
             return WEXITSTATUS(status) == kExitOfSignals + signal;
           });
  }

  // The worse a rank's end, the less it can be a consequence of another's: a rank that is killed has not seen a peer go
  // (3), nor one that a signal ended before it was ready to stop with the others.
  enum Severity { kKilled, kFailed, kStopped, kMissedAPeer };
  static Severity severity(int status) {
    if (WIFSIGNALED(status)) return kKilled;
    if (was_stopped(status)) return kStopped;
    return WEXITSTATUS(status) == kKilledCode ? kMissedAPeer : kFailed;
  }
  static std::chrono::milliseconds settle_time(Severity severity) {
    if (severity == kStopped) return kSettleOfStop;
    return severity == kMissedAPeer ? kSettleOfThree : kSettle;
  }

  void end_others_of_a_failure() {
    if (!culprit_) note_failures();
    if (!culprit_) return;
    if (!terminated_) {
      for (const auto& rank : ranks_) kill_one(*rank, SIGTERM);
      terminated_ = true;
      next_deadline_ = Clock::now() + plan_.grace;
    } else if (Clock::now() >= *next_deadline_) {
      for (const auto& rank : ranks_) rank->signal(SIGKILL);
      next_deadline_ = Clock::now() + plan_.grace;
    }
  }

  // Finds the culprit among the ranks that have failed, as soon as no other can turn out to be it.
  void note_failures() {
    std::optional<int> worst;
    bool is_any_running = false, have_all_stopped = true;
    for (int i = 0; i < num_trainers(); ++i) {
      const std::optional<int> status = ranks_[i]->status();
      is_any_running |= !status;
      have_all_stopped &= status && (ended_well(*status) || was_stopped(*status));
      if (!status || ended_well(*status)) continue;
      if (!worst || severity(*status) < severity(*ranks_[*worst]->status())) worst = i;
    }
    if (!worst || have_all_stopped) return;
    if (!first_failure_) first_failure_ = Clock::now();
    const Severity severity_of_worst = severity(*ranks_[*worst]->status());
    next_deadline_ = *first_failure_ + settle_time(severity_of_worst);
    if (severity_of_worst == kKilled || !is_any_running || Clock::now() >= *next_deadline_) culprit_ = worst;
  }

  LaunchEnd end() {
    if (num_trainers() == 0) return end_of_workers();
    if (!culprit_) note_failures();
    if (!culprit_) return {.code = interrupted_code(), .failed = false, .message = ""};
    const RankProcess& rank = *ranks_[*culprit_];
    show(number_of(*culprit_), rank.last_output());
    const int status = *rank.status();
    return {.code = code_of(status),
            .failed = true,
            .message = fmt::format("rank {} of {} ({}) {}{}", number_of(*culprit_), num_ranks(), host_name(),
                                   how_it_ended(*culprit_),
                                   num_ranks() == 1    ? ""
                                   : WIFEXITED(status) ? "; the others were ended; its own error, above, says why"
                                                       : "; the others were ended")};
  }

  // The output of each of them was shown when it ended.
  LaunchEnd end_of_workers() const {
    const auto has_ended_well = [this](const auto& rank) { return ended_well(*rank->status()); };
    if (std::ranges::any_of(ranks_, has_ended_well)) return {};
    const int status = *ranks_.front()->status();
    return {
        .code = code_of(status),
        .failed = true,
        .message = fmt::format("rank {} of {} ({}), which only samples, {}{}", number_of(0), num_ranks(), host_name(),
                               how_it_ended(0), ranks_.size() > 1 ? ", and no other one here ended well" : "")};
  }

  static int code_of(int status) { return WIFSIGNALED(status) ? kKilledCode : WEXITSTATUS(status); }

  // Returns, for ranks that ended as they should, the code of the lowest rank which was interrupted, or 0.
  int interrupted_code() const {
    for (const auto& rank : ranks_ | std::views::take(num_trainers())) {
      const int status = *rank->status();
      const int code = WIFSIGNALED(status) ? kExitOfSignals + WTERMSIG(status) : WEXITSTATUS(status);
      if (code != 0) return code;
    }
    return 0;
  }

  static void show(int rank, const std::string& output) {
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) {
      std::fprintf(stderr, "[rank %d] %s\n", rank, base::printable(line).c_str());
    }
  }

  const LaunchPlan& plan_;
  bool is_stdin_open_;  // false too if nobody asked us to look at it
  Signals signals_;     // made before the first rank
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::set<int> passed_on_;     // signals that were passed on to ranks
  std::optional<int> culprit_;  // index here of the rank that failed first
  std::set<int> told_;          // workers whose end was reported
  std::set<int> frozen_;        // indices here of ranks that were killed for their silence
  std::optional<Clock::time_point> workers_deadline_;
  std::optional<Clock::time_point> insist_deadline_;
  bool terminated_ = false;
  std::optional<Clock::time_point> first_failure_;  // when a rank was first seen to have failed
  std::optional<Clock::time_point> next_deadline_;
};

}  // namespace

LaunchEnd launch(const LaunchPlan& plan) {
  TANDEM_CHECK(!plan.command.empty() && plan.ranks_per_host > 0 && plan.host < plan.num_hosts);
  // Ranks would wait for the name themselves. Here their host says so, and signals still end this process at once.
  if (plan.num_hosts > 1) address_of_host(plan.master_address, plan.timeout_s);
  return Launcher(plan).run();
}

}  // namespace tandem::mesh
