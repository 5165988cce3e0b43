#include "reward/graders.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "reward/call_queue.h"
#include "reward/grade_messages.h"
#include "reward/reward_rules.h"
#include "worker/child_process.h"
#include "worker/message.h"
#include "worker/user_code.h"

namespace tandem::reward {
namespace {

using Clock = std::chrono::steady_clock;

// Far above what a group of samples answers, far below what would hurt us.
constexpr int64_t kMaxReplyBytes = int64_t{16} << 20;
constexpr int64_t kMaxGradeValues = 500'000;

constexpr auto kBombGrace = std::chrono::seconds(5);
constexpr auto kRetryPause = std::chrono::milliseconds(20);

// How long a process goes on with the calls it has before it answers, where no other waits to be added.
constexpr double kTurnS = 0.05;
// What a process with calls of an async function may take beyond their deadlines, which it watches itself.
constexpr double kOwnWatchGraceS = 1.0;

// What a process says of the reward that it has loaded.
struct Facts {
  std::string dialect;
  bool takes_group = false;  // a call holds a group, not a sample
  bool concurrent = false;   // calls of one process may be under way together
  std::vector<std::string> columns;
};

const char* reason_class(worker::LossCause cause) {
  if (cause == worker::LossCause::kMemory) return "memory";
  return cause == worker::LossCause::kDeadline ? "deadline" : "died";
}

// The options have refused what this refuses.
void check_config(const GraderConfig& config) {
  const GraderLimits& limits = config.limits;
  const int num_kinds = (config.rm_types.empty() ? 0 : 1) + (config.custom_rm_path.empty() ? 0 : 1) +
                        (config.group_filter.empty() ? 0 : 1) + (config.service ? 1 : 0);
  TANDEM_CHECK_EQ(num_kinds, 1, "of rewards that one grader has");
  for (const std::string& rm_type : config.rm_types) TANDEM_CHECK(find_rule(rm_type) != nullptr, rm_type);
  TANDEM_CHECK(limits.num_processes > 0 && limits.max_calls > 0, limits.num_processes, limits.max_calls);
  TANDEM_CHECK(limits.deadline_s > 0, limits.deadline_s);
}

}  // namespace

// One thread per process: it takes calls from the queue, has its process make them, stores the grades. What threads
// share besides is under `mutex`.
struct Graders::Impl {
  struct Slot {
    std::unique_ptr<worker::ChildProcess> child;  // set and reset under `mutex`; used by its thread without
    bool ready = false;                           // its first process has loaded the function, or failed to
    bool replacing = false;
    bool is_spent = false;  // its process made the one call that it was forked for
    std::thread thread;
    // Of its thread alone:
    std::map<uint64_t, Call> calls;  // under way, by the number that the process knows them by
    uint64_t last_call = 0;
    bool retiring = false;  // its process takes no other call, and is replaced after those under way
  };

  explicit Impl(const GraderConfig& grader_config)
      : config(grader_config),
        code(user_code(config), [this](worker::ChildProcess& child) { return call_load(child); }) {
    if (config.may_not_apply) queue.expect("none");
  }

  ~Impl() { stop(); }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
      for (Slot& slot : slots) {
        if (slot.child != nullptr) slot.child->interrupt();
      }
    }
    queue.stop();
    for (Slot& slot : slots) {
      if (slot.thread.joinable()) slot.thread.join();
    }
  }

  static worker::UserCodeConfig user_code(const GraderConfig& config) {
    worker::UserCodeConfig result;
    result.mode = "grader";
    result.worker = config.worker;
    result.worker.max_reply_bytes = kMaxReplyBytes;
    result.worker.max_reply_values = kMaxGradeValues;
    result.worker.network = config.service.has_value();
    result.python = config.python;
    result.num_processes = config.limits.num_processes;
    result.memory_bytes = config.limits.memory_bytes;
    result.calls_at_once = config.limits.max_calls;
    result.more_threads = config.service ? config.limits.max_calls : 0;  // each request to a service is a thread
    result.output_path = config.output_path;
    result.max_output_bytes = config.max_output_bytes;
    result.sandbox = config.sandbox;
    result.warn_of_missing_layers = config.warn_of_missing_layers;
    return result;
  }

  static Facts facts_of(const base::Json& loaded) {
    try {
      return {.dialect = loaded.at("dialect").get<std::string>(),
              .takes_group = loaded.at("takes_group").get<bool>(),
              .concurrent = loaded.at("concurrent").get<bool>(),
              .columns = loaded.at("columns").get<std::vector<std::string>>()};
    } catch (const base::Json::exception&) {
      throw worker::WorkerError("grader worker answered something else than a result");
    }
  }

  // Makes a process load the reward, which a fork of the warm parent has done already.
  base::Json call_load(worker::ChildProcess& child) const {
    try {
      return child.call("load",
                        {{"rm_types", config.rm_types},
                         {"custom_rm_path", config.custom_rm_path},
                         {"service", service_json()},
                         {"reward_key", config.reward_key},
                         {"group_filter", config.group_filter},
                         {"group_rm", config.group_rm},
                         {"label_key", config.label_key},
                         {"metadata_key", config.metadata_key},
                         {"arguments", config.arguments},
                         {"sandboxed", config.sandbox != worker::Sandbox::kOff}},
                        config.worker.deadline_s);
    } catch (const EnvironmentError& lacking) {  // a package, which another interpreter than ours may lack
      TANDEM_USER_CHECK(config.python.empty(), fmt::format("--rm-python {}: {}", config.python, lacking.what()));
      throw;
    }
  }

  base::Json service_json() const {
    if (!config.service) return nullptr;
    return {{"url", config.service->url},
            {"token", config.service->token},
            {"max_retries", config.service->max_retries},
            {"try_connection", config.service->try_connection},
            {"deadline_s", config.limits.deadline_s},
            {"max_connections", config.limits.max_calls}};
  }

  // A process that has loaded the reward. Throws what went wrong; the slot is then empty. While a neighbour's fork bomb
  // uses up the processes a start fails, so it is tried until that neighbour's deadline has passed.
  void start_child(Slot& slot) {
    const auto give_up = Clock::now() + std::chrono::duration<double>(longest_deadline_s.load()) + kBombGrace;
    while (true) {
      try {
        try_to_start_child(slot);
        return;
      } catch (const std::runtime_error&) {
        drop_child(slot);
        const std::lock_guard lock(mutex);
        if (stopping || !slot.replacing || Clock::now() > give_up) throw;
      }
      std::this_thread::sleep_for(kRetryPause);
    }
  }

  void try_to_start_child(Slot& slot) {
    auto child = code.fork();
    worker::ChildProcess& started = *child;
    {
      const std::lock_guard lock(mutex);
      slot.child = std::move(child);
      if (stopping) started.interrupt();
    }
    call_load(started);
    started.note_what_belongs();
    const std::lock_guard lock(mutex);
    if (slot.replacing && !slot.is_spent) ++num_restarts;
    slot.replacing = true;
    slot.is_spent = false;
  }

  void drop_child(Slot& slot) {
    std::unique_ptr<worker::ChildProcess> child;
    {
      const std::lock_guard lock(mutex);
      child = std::move(slot.child);
    }
    slot.retiring = false;
  }

  void run(Slot& slot) {
    std::exception_ptr failure;
    try {
      start_child(slot);
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex);
      slot.ready = true;
      if (failure != nullptr && start_error == nullptr) start_error = failure;
    }
    slot_ready.notify_all();
    if (failure != nullptr) return;
    while (true) {
      std::optional<Call> call = next_call(slot);
      if (!call && slot.calls.empty()) return;
      try {
        advance(slot, std::move(call));
      } catch (...) {
        queue.fail(std::current_exception());
        return;
      }
    }
  }

  // A call for a process that may take one. Nothing: it has calls to go on with, or, with none, this is the end.
  std::optional<Call> next_call(const Slot& slot) {
    if (slot.calls.empty()) return queue.wait();
    const bool takes_another = facts.concurrent && !slot.retiring && !slot.calls.begin()->second.alone &&
                               std::ssize(slot.calls) < config.limits.max_calls;
    return takes_another ? queue.next_beside_others() : std::nullopt;
  }

  double deadline_of(const Call& call) const {
    return config.limits.deadline_s * static_cast<double>(call.samples.size());
  }

  // Adds a call to those of the slot's process, where there is one to add, lets the process go on with all of them, and
  // stores what has ended. Never fails for what user code does: that is a failed grade.
  void advance(Slot& slot, std::optional<Call> call) {
    if (slot.child != nullptr && slot.calls.empty() && !(slot.child->alive() && is_tidy(*slot.child))) drop_child(slot);
    try {
      if (slot.child == nullptr) start_child(slot);
    } catch (const std::runtime_error& error) {
      const std::string reason = std::string("a new grader could not start: ") + error.what();
      queue.store(*call, all_failed(call->samples, "not_started", reason));
      return;
    }
    const double turn_s = call ? 0.0 : kTurnS;
    base::Json added = base::Json::array();
    const uint64_t number = call ? ++slot.last_call : 0;
    if (call) {
      added.push_back({{"call", number}, {"samples", to_json(call->samples)}, {"deadline_s", deadline_of(*call)}});
      call->begun = Clock::now();
      longest_deadline_s = std::max(longest_deadline_s.load(), deadline_of(*call));
      slot.calls.emplace(number, std::move(*call));
      slot.retiring |= config.limits.fork_each_call;
    }
    try {
      store_ended(slot, slot.child->call("grade", {{"calls", added}, {"wait_s", turn_s}}, patience_s(slot)));
      if (const Call* late = overdue(slot)) {
        lose(slot, "deadline", fmt::format("did not answer: the deadline of {:g} s passed", deadline_of(*late)));
      }
    } catch (const worker::ChildLost& error) {
      lose(slot, reason_class(error.cause()), reason_of(error, slot));
    } catch (const UserError& error) {
      refuse(slot, number, error.what());
    } catch (const std::runtime_error&) {  // a grader that has loaded has no such answer: user code wrote it
      lose(slot, "died", "the grader answered with something other than grades");
    } catch (const base::Json::exception&) {
      lose(slot, "died", "the grader answered with something other than grades");
    }
    if (slot.child == nullptr || !slot.calls.empty()) return;
    if (slot.retiring) {
      slot.is_spent = config.limits.fork_each_call;
      drop_child(slot);
    } else {
      slot.child->ask_what_is_left();  // the answer is there when the next call is
    }
  }

  // Whether the last call left nothing that the next one could meet.
  bool is_tidy(worker::ChildProcess& child) {
    const std::string left = child.what_is_left();
    if (left.empty()) return true;
    if (!warned_of_leftovers.exchange(true)) {
      base::log_warning(
          "the reward left {} behind after a call, so its worker is replaced, as after each such call (counted in "
          "perf/grader_restarts): let a call end what it starts",
          left);
    }
    return false;
  }

  std::string reason_of(const worker::ChildLost& error, const Slot& slot) const {
    if (!facts.concurrent || error.cause() != worker::LossCause::kDeadline || slot.calls.size() > 1)
      return error.what();
    return fmt::format("computed without an await: the deadline of {:g} s passed",
                       deadline_of(slot.calls.begin()->second));
  }

  // How long the slot's process may say nothing.
  double patience_s(const Slot& slot) const {
    double longest_s = 0.0;
    for (const auto& [number, call] : slot.calls) longest_s = std::max(longest_s, deadline_of(call));
    return facts.concurrent ? longest_s + kOwnWatchGraceS : longest_s;
  }

  void store_ended(Slot& slot, const base::Json& reply) {
    if (!reply.is_array()) throw worker::BadReply("answered with something other than grades");
    for (const base::Json& ended : reply) {
      const auto at = slot.calls.find(ended.at("call").get<uint64_t>());
      if (at == slot.calls.end()) throw worker::BadReply("answered with grades of another call");
      std::vector<Grade> grades = grades_of(ended.at("grades"), at->second.samples);
      const auto failed_by = [&](const char* name) {
        return std::any_of(grades.begin(), grades.end(), [&](const Grade& g) { return g.reason_class == name; });
      };
      const bool has_company = slot.calls.size() > 1;
      Call call = std::move(slot.calls.extract(at).mapped());
      // What ran out of memory once starts the next call with little left; what did not answer may still run.
      slot.retiring |= ended.value("retire", false);
      slot.retiring |= failed_by("memory") || (facts.concurrent && failed_by("deadline"));
      if (has_company && failed_by("memory")) {
        repeat(std::move(call), grades.front().reason);
      } else {
        queue.store(call, std::move(grades));
      }
    }
  }

  // A call of a process that answers without ending it. The process does not count time in which it computes for other
  // calls, so it may be right to wait; alone it can be neither slow for others' sake nor wait for ever.
  const Call* overdue(const Slot& slot) const {
    for (const auto& [number, call] : slot.calls) {
      const double age_s = std::chrono::duration<double>(Clock::now() - call.begun).count();
      if (age_s > 2 * deadline_of(call) + kOwnWatchGraceS) return &call;
    }
    return nullptr;
  }

  // The slot's process is no more. With one call under way that call was the cause.
  void lose(Slot& slot, const std::string& reason_class, const std::string& reason) {
    drop_child(slot);
    std::vector<Call> calls;
    for (auto& [number, call] : slot.calls) calls.push_back(std::move(call));
    slot.calls.clear();
    if (calls.size() == 1) {
      queue.store(calls.front(), all_failed(calls.front().samples, reason_class, reason));
    } else {
      queue.repeat(std::move(calls), reason);
    }
  }

  void repeat(Call call, const std::string& why) {
    std::vector<Call> calls;
    calls.push_back(std::move(call));
    queue.repeat(std::move(calls), why);
  }

  // A call that cannot be sent, or an answer that only user code writes.
  void refuse(Slot& slot, uint64_t number, const std::string& reason) {
    const auto at = slot.calls.find(number);
    if (at == slot.calls.end()) return lose(slot, "died", "the grader answered with something other than grades");
    const Call call = std::move(slot.calls.extract(at).mapped());
    queue.store(call, all_failed(call.samples, "exception", reason));
  }

  GraderConfig config;
  worker::UserCode code;
  std::atomic<bool> warned_of_leftovers = false;
  std::atomic<double> longest_deadline_s = config.limits.deadline_s;  // of a call so far
  CallQueue queue{config.group_filter.empty() ? "reward" : "--dynamic-sampling-filter-path"};
  Facts facts;  // since before the threads
  mutable std::mutex mutex;
  std::condition_variable slot_ready;
  std::deque<Slot> slots;
  int64_t num_restarts = 0;
  std::exception_ptr start_error;
  bool stopping = false;
};

Graders::Graders(const GraderConfig& config) {
  check_config(config);
  impl_ = std::make_unique<Impl>(config);
  Impl& impl = *impl_;
  try {
    impl.facts = Impl::facts_of(impl.code.start());
  } catch (const worker::WorkerError& lost) {
    TANDEM_USER_CHECK(config.python.empty(),
                      fmt::format("--rm-python {}: cannot run reward code: {}", config.python, lost.what()));
    throw EnvironmentError(std::string("cannot start the graders: ") + lost.what());
  }
  impl.slots.resize(static_cast<size_t>(config.limits.num_processes));
  for (Impl::Slot& slot : impl.slots) slot.thread = std::thread([&impl, &slot] { impl.run(slot); });
  std::exception_ptr error;
  {
    std::unique_lock lock(impl.mutex);
    impl.slot_ready.wait(lock, [&] {
      return std::all_of(impl.slots.begin(), impl.slots.end(), [](const Impl::Slot& slot) { return slot.ready; });
    });
    error = impl.start_error;
  }
  if (error == nullptr) return;
  impl.stop();
  try {
    std::rethrow_exception(error);
  } catch (const worker::WorkerError& lost) {
    throw EnvironmentError(std::string("cannot start the graders: ") + lost.what());
  }
}

Graders::~Graders() = default;

void Graders::submit(std::vector<GradeRequest> group) { impl_->queue.add(std::move(group), impl_->facts.takes_group); }

std::vector<Grade> Graders::collect() { return impl_->queue.collect(); }

std::vector<Grade> Graders::take_finished(double seconds) { return impl_->queue.take_finished(seconds); }

void Graders::discard() { impl_->queue.discard(); }

std::map<std::string, int64_t> Graders::failures() const { return impl_->queue.failures(); }

int64_t Graders::repeated() const { return impl_->queue.repeated(); }

int64_t Graders::restarts() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->num_restarts;
}

std::vector<int64_t> Graders::process_ids() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<int64_t> ids;
  for (const Impl::Slot& slot : impl_->slots) {
    if (slot.child != nullptr) ids.push_back(slot.child->process_id());
  }
  return ids;
}

const std::string& Graders::scratch_folder() const { return impl_->code.scratch_folder(); }

const std::vector<std::string>& Graders::columns() const { return impl_->facts.columns; }

std::string Graders::dialect() const { return impl_->facts.dialect; }

}  // namespace tandem::reward
