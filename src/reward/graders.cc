#include "reward/graders.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "reward/call_queue.h"
#include "reward/failure_class.h"
#include "reward/grade_messages.h"
#include "reward/reward_rules.h"
#include "worker/message.h"
#include "worker/worker_pool.h"

namespace tandem::reward {
namespace {

using Clock = std::chrono::steady_clock;

// The bounds are far above what a group of samples answers, and far below what would hurt us.
constexpr int64_t kMaxReplyBytes = int64_t{16} << 20;
constexpr int64_t kMaxGradeValues = 500'000;

// A neighbour's fork bomb lets no process start before its call has ended, so starts are tried for so long after the
// deadline.
constexpr double kBombGraceS = 5.0;

// A process goes on with the calls it has for so long before it answers, where no other waits to be added.
constexpr double kGraderTurnS = 0.05;
// A process watches the deadlines of an async function's calls itself, and may take so much longer.
constexpr double kGraderWatchGraceS = 1.0;

// Calls of built-in rewards that take less than this go to a process several at a time, as many as take so long: of a
// call of a fifth of a millisecond most is the message and the look at what it has left behind.
constexpr double kPackS = 0.005;
constexpr double kMaxPack = 16.0;

constexpr const char* kBuiltIn = "built-in";

// Fails for what the options have refused.
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

// Each worker has a thread, which takes calls from the queue, has its worker make them, and stores the grades.
struct Graders::Impl {
  // The answer of a process that has loaded the reward.
  struct Facts {
    std::string dialect;
    bool takes_group = false;  // a call holds a group, not a sample
    bool concurrent = false;   // calls of one process may be under way together
    std::vector<std::string> columns;
  };

  struct Grader {
    worker::Worker& worker;
    std::map<uint64_t, Call> calls = {};  // under way, by the number that the process knows them by
    uint64_t last_call = 0;
    size_t pack = 1;  // calls that it is given at a time
  };

  explicit Impl(const GraderConfig& grader_config) : config(grader_config), pool(pool_config()) {
    queue.expect("none");  // that a reward does not apply to a sample is no failure, and no news
  }

  ~Impl() {
    pool.interrupt();
    queue.stop();
    pool.join();
  }

  void start() {
    facts = facts_of(pool.start());
    pool.start_workers();
    pool.serve([this](size_t index) { run({.worker = pool.worker(index)}); });
  }

  worker::WorkerPoolConfig pool_config() const {
    worker::WorkerPoolConfig result;
    result.mode = "grader";
    result.code = config;
    result.code.code_flag = config.group_filter.empty() ? "--custom-rm-path" : "--dynamic-sampling-filter-path";
    result.code.code_path = config.group_filter.empty() ? config.custom_rm_path : config.group_filter;
    result.code.worker.max_reply_bytes = kMaxReplyBytes;
    result.code.worker.max_reply_values = kMaxGradeValues;
    result.code.worker.network = config.service.has_value();
    result.load_arguments = {
        {"rm_types", config.rm_types},     {"custom_rm_path", config.custom_rm_path}, {"service", service_json()},
        {"reward_key", config.reward_key}, {"group_filter", config.group_filter},     {"group_rm", config.group_rm},
        {"label_key", config.label_key},   {"metadata_key", config.metadata_key},     {"arguments", config.arguments}};
    result.num_processes = config.limits.num_processes;
    result.memory_bytes = config.limits.memory_bytes;
    result.calls_at_once = config.limits.max_calls;
    result.more_threads = config.service ? config.limits.max_calls : 0;  // each request to a service is a thread
    result.what_runs = "reward code";
    result.who_runs = "the graders";
    result.warn_of_leftovers = [](const std::string& left) {
      base::log_warning(
          "the reward left {} behind after a call, so its worker is replaced, as after each such call (counted in "
          "perf/grader_restarts): let a call end what it starts",
          left);
    };
    return result;
  }

  static Facts facts_of(const base::Json& loaded) {
    try {
      return {.dialect = loaded.at("dialect").get<std::string>(),
              .takes_group = loaded.at("takes_group").get<bool>(),
              .concurrent = loaded.at("concurrent").get<bool>(),
              .columns = loaded.at("columns").get<std::vector<std::string>>()};
    } catch (const base::Json::exception&) {
      throw EnvironmentError("cannot start the graders: grader worker answered something else than a result");
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

  void run(Grader grader) {
    try {
      while (true) {
        std::vector<Call> calls = next_calls(grader);
        if (calls.empty() && grader.calls.empty()) return;
        advance(grader, std::move(calls));
      }
    } catch (...) {
      queue.fail(std::current_exception());
    }
  }

  // Returns calls for a process that may take some. Nothing: it has calls to go on with, or, without calls, this is the
  // end.
  std::vector<Call> next_calls(const Grader& grader) {
    std::vector<Call> calls;
    const auto take = [&](std::optional<Call> call) {
      if (call) calls.push_back(std::move(*call));
      return call.has_value();
    };
    if (!grader.calls.empty()) {
      const bool takes_another = facts.concurrent && !grader.worker.is_retiring() &&
                                 !grader.calls.begin()->second.alone &&
                                 std::ssize(grader.calls) < config.limits.max_calls;
      if (takes_another) take(queue.next_beside_others());
    } else if (take(queue.wait()) && !calls.front().alone) {
      const size_t share = 1 + queue.num_waiting() / static_cast<size_t>(config.limits.num_processes);
      while (calls.size() < std::min(grader.pack, share) && take(queue.next_beside_others())) {
      }
    }
    return calls;
  }

  // Learns from calls that have ended how many the process is given next time.
  void note_time(Grader& grader, size_t num_calls, double seconds) const {
    if (facts.dialect != kBuiltIn || config.limits.fork_each_call) return;
    const double fitting = kPackS * static_cast<double>(num_calls) / std::max(seconds, 1e-9);
    grader.pack = static_cast<size_t>(std::clamp(fitting, 1.0, kMaxPack));
  }

  double deadline_of(const Call& call) const {
    return config.limits.deadline_s * static_cast<double>(call.samples.size());
  }

  // Adds calls to those of the grader's process, where there are some to add, lets the process go on with all of them,
  // and stores what has ended. What user code does makes grades fail, and never this function.
  void advance(Grader& grader, std::vector<Call> calls) {
    try {
      if (grader.calls.empty()) grader.worker.make_ready(longest_deadline_s + kBombGraceS);
    } catch (const std::runtime_error& error) {
      const std::string reason = std::string("a new grader could not start: ") + error.what();
      for (const Call& call : calls) queue.store(call, all_failed(call.samples, "not_started", reason));
      return;
    }
    const double turn_s = calls.empty() ? kGraderTurnS : 0.0;
    const Clock::time_point begin = Clock::now();
    base::Json added = base::Json::array();
    for (Call& call : calls) {
      const uint64_t number = ++grader.last_call;
      added.push_back({{"call", number}, {"samples", to_json(call.samples)}, {"deadline_s", deadline_of(call)}});
      call.begun = begin;
      longest_deadline_s = std::max(longest_deadline_s.load(), deadline_of(call));
      grader.calls.emplace(number, std::move(call));
      if (config.limits.fork_each_call) grader.worker.retire();
    }
    try {
      store_ended(grader, grader.worker.call("grade", {{"calls", added}, {"wait_s", turn_s}}, reply_timeout_s(grader)));
      note_time(grader, calls.size(), std::chrono::duration<double>(Clock::now() - begin).count());
      if (const Call* late = overdue(grader)) {
        lose(grader, "deadline", fmt::format("did not answer: the deadline of {:g} s passed", deadline_of(*late)));
      }
    } catch (const worker::ChildLost& error) {
      lose(grader, reason_class(error.cause()), reason_of(error, grader));
    } catch (const UserError& error) {
      refuse(grader, calls.size(), error.what());
    } catch (const std::runtime_error&) {  // a grader that has loaded has no such answer: user code wrote it
      lose(grader, "died", "the grader answered with something other than grades");
    } catch (const base::Json::exception&) {
      lose(grader, "died", "the grader answered with something other than grades");
    }
    if (grader.calls.empty()) grader.worker.rest(/*is_spent=*/config.limits.fork_each_call);
  }

  std::string reason_of(const worker::ChildLost& error, const Grader& grader) const {
    if (!facts.concurrent || error.cause() != worker::LossCause::kDeadline || grader.calls.size() > 1)
      return error.what();
    return fmt::format("computed without an await: the deadline of {:g} s passed",
                       deadline_of(grader.calls.begin()->second));
  }

  // Returns for how long the process may say nothing.
  double reply_timeout_s(const Grader& grader) const {
    double longest_s = 0.0;
    for (const auto& [number, call] : grader.calls) longest_s = std::max(longest_s, deadline_of(call));
    return facts.concurrent ? longest_s + kGraderWatchGraceS : longest_s;
  }

  void store_ended(Grader& grader, const base::Json& reply) {
    if (!reply.is_array()) throw worker::BadReply("answered with something other than grades");
    for (const base::Json& ended : reply) {
      const auto at = grader.calls.find(ended.at("call").get<uint64_t>());
      if (at == grader.calls.end()) throw worker::BadReply("answered with grades of another call");
      std::vector<Grade> grades = grades_of(ended.at("grades"), at->second.samples);
      const auto failed_by = [&](const char* name) {
        return std::any_of(grades.begin(), grades.end(), [&](const Grade& g) { return g.reason_class == name; });
      };
      const bool has_company = grader.calls.size() > 1;
      // Everything is read before the call leaves those under way: lose() fails the grades of these alone.
      const bool is_to_retire = ended.value("retire", false);
      Call call = std::move(grader.calls.extract(at).mapped());
      // A process that ran out of memory once starts the next call with little left; a call that did not answer may
      // still run.
      if (is_to_retire || failed_by("memory") || (facts.concurrent && failed_by("deadline"))) {
        grader.worker.retire();
      }
      if (has_company && failed_by("memory")) {
        repeat(std::move(call), grades.front().reason);
      } else {
        queue.store(call, std::move(grades));
      }
    }
  }

  // Returns a call that does not end, of a process that answers. The process does not count time in which it computes
  // for other calls, so it may be right to wait; alone it can be neither slow for others' sake nor wait for ever.
  const Call* overdue(const Grader& grader) const {
    for (const auto& [number, call] : grader.calls) {
      const double age_s = std::chrono::duration<double>(Clock::now() - call.begun).count();
      if (age_s > 2 * deadline_of(call) + kGraderWatchGraceS) return &call;
    }
    return nullptr;
  }

  // Fails or repeats the calls of a process that is no more. A call that was alone was the cause.
  void lose(Grader& grader, const std::string& reason_class, const std::string& reason) {
    grader.worker.drop();
    std::vector<Call> calls;
    for (auto& [number, call] : grader.calls) calls.push_back(std::move(call));
    grader.calls.clear();
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

  // Fails the call that was added last and cannot be sent, has several of them sent alone, or loses a process that
  // answers as only user code does.
  void refuse(Grader& grader, size_t num_added, const std::string& reason) {
    const auto at = grader.calls.find(grader.last_call);
    if (num_added == 0 || at == grader.calls.end())
      return lose(grader, "died", "the grader answered with something other than grades");
    if (num_added > 1) return lose(grader, "died", reason);
    const Call call = std::move(grader.calls.extract(at).mapped());
    queue.store(call, all_failed(call.samples, "exception", reason));
  }

  GraderConfig config;
  worker::WorkerPool pool;
  std::atomic<double> longest_deadline_s = config.limits.deadline_s;  // the longest of a call so far
  CallQueue queue{config.group_filter.empty() ? "reward" : "--dynamic-sampling-filter-path"};
  Facts facts;  // set before the threads start
};

Graders::Graders(const GraderConfig& config) {
  check_config(config);
  impl_ = std::make_unique<Impl>(config);
  impl_->start();
}

Graders::~Graders() = default;

void Graders::submit(std::vector<GradeRequest> group) { impl_->queue.add(std::move(group), impl_->facts.takes_group); }

std::vector<Grade> Graders::take_finished(double seconds) { return impl_->queue.take_finished(seconds); }

int Graders::descriptor() const { return impl_->queue.descriptor(); }

void Graders::discard() { impl_->queue.discard(); }

std::map<std::string, int64_t> Graders::failures() const { return impl_->queue.failures(); }

int64_t Graders::repeated() const { return impl_->queue.repeated(); }

int64_t Graders::restarts() const { return impl_->pool.restarts(); }

std::vector<int64_t> Graders::process_ids() const { return impl_->pool.process_ids(); }

const std::string& Graders::scratch_folder() const { return impl_->pool.scratch_folder(); }

const std::vector<std::string>& Graders::columns() const { return impl_->facts.columns; }

std::string Graders::dialect() const { return impl_->facts.dialect; }

}  // namespace tandem::reward
