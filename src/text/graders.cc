#include "text/graders.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "text/child_process.h"
#include "text/output_file.h"
#include "text/scratch_folder.h"
#include "text/utf8_stream.h"

namespace tandem::text {
namespace {

using Clock = std::chrono::steady_clock;

// Far above what a group of samples answers, far below what would hurt us.
constexpr int64_t kMaxReplyBytes = int64_t{4} << 20;

// What reward code may start beside the graders' own, all together, threads counted. Few, for processes that fork
// without end slow down all others that share memory with them.
constexpr int64_t kProcessesAllowed = 64;
constexpr int kProcessesPerGrader = 4;  // it and its init, and others while they come and go

constexpr auto kBombGrace = std::chrono::seconds(5);
constexpr auto kRetryPause = std::chrono::milliseconds(20);

// One call of one process: a sample, or with group_rm a group. Its grades go to results[first_result...].
struct Job {
  std::vector<GradeRequest> samples;
  size_t first_result = 0;
};

const char* reason_class(LossCause cause) { return cause == LossCause::kDeadline ? "deadline" : "died"; }

std::vector<Grade> all_failed(const Job& job, const std::string& reason_class, const std::string& reason) {
  std::vector<Grade> grades;
  for (const GradeRequest& sample : job.samples) {
    grades.push_back(
        {.sample_id = sample.sample_id, .failed = true, .reason_class = reason_class, .reason = reason, .extras = {}});
  }
  return grades;
}

// A response is the model's and may end inside a character; user code sees U+FFFD there.
std::string as_text(const std::string& bytes) {
  Utf8Stream stream;
  const std::string text = stream.push(bytes);
  return text + stream.finish();
}

base::Json to_json(const GradeRequest& sample) {
  return {{"group_id", sample.group_id},
          {"sample_id", sample.sample_id},
          {"prompt", sample.prompt},
          {"prompt_text", as_text(sample.prompt_text)},
          {"response", as_text(sample.response)},
          {"label", sample.label},
          {"metadata", sample.metadata.is_object() ? sample.metadata : base::Json::object()},
          {"prompt_tokens", sample.prompt_tokens},
          {"response_tokens", sample.response_tokens},
          {"truncated", sample.truncated}};
}

Grade to_grade(uint64_t sample_id, const base::Json& outcome) {
  Grade grade{.sample_id = sample_id, .reason_class = "", .reason = "", .extras = {}};
  if (outcome.contains("failed")) {
    constexpr std::array kClasses = {"exception", "deadline", "memory", "not_finite", "wrong_type", "wrong_count"};
    grade.failed = true;
    grade.reason_class = outcome.at("failed").get<std::string>();
    if (std::find(kClasses.begin(), kClasses.end(), grade.reason_class) == kClasses.end()) {
      throw EnvironmentError("no class of failures: " + grade.reason_class);
    }
    grade.reason = outcome.at("reason").get<std::string>();
    return grade;
  }
  grade.reward = outcome.at("reward").get<double>();
  grade.extras = outcome.at("extras").get<std::map<std::string, double>>();
  return grade;
}

void check_rm_type(const GraderConfig& config) {
  const bool custom = !config.custom_rm_path.empty();
  TANDEM_USER_CHECK(custom || !config.rm_type.empty(),
                    "no reward: give --rm-type exact, math or dapo, or --custom-rm-path FILE.py:FUNCTION");
  if (custom) return;
  constexpr std::array kRules = {"exact", "math", "dapo"};
  constexpr std::array kOfVime = {"deepscaler", "f1", "gpqa", "ifbench", "random", "remote_rm"};
  const auto names = [&](const auto& list) {
    return std::find(list.begin(), list.end(), config.rm_type) != list.end();
  };
  TANDEM_USER_CHECK(
      !names(kOfVime) && !config.rm_type.starts_with("boxed_"), "--rm-type",
      config.rm_type +
          ": known from vime, not in Tandem yet; use exact, math, dapo, or --custom-rm-path FILE.py:FUNCTION");
  TANDEM_USER_CHECK(names(kRules), "--rm-type", config.rm_type + ": not known; use exact, math or dapo");
}

}  // namespace

// One thread per process: it takes a job, waits for its process's answer, stores the grades. All that threads share is
// under `mutex`.
struct Graders::Impl {
  struct Slot {
    std::unique_ptr<ChildProcess> child;  // set and reset under `mutex`; used by its thread without
    bool ready = false;                   // its first process has loaded the function, or failed to
    bool replacing = false;
    std::thread thread;
  };

  explicit Impl(const GraderConfig& grader_config)
      : config(grader_config), output(config.output_path, config.max_output_bytes) {
    config.worker.memory_bytes = config.memory_bytes;
    config.worker.max_reply_bytes = kMaxReplyBytes;
    config.worker.max_processes = kProcessesAllowed + int64_t{kProcessesPerGrader} * config.num_processes;
    config.worker.sandboxed = config.sandbox != Sandbox::kOff;
    config.worker.writable.reset();
    if (config.worker.sandboxed) config.worker.writable = {scratch.path()};
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
    work_changed.notify_all();
    for (Slot& slot : slots) {
      if (slot.thread.joinable()) slot.thread.join();
    }
  }

  // What the kernel lacks is the same for every process, and said once.
  void judge(const std::vector<std::string>& missing_layers) {
    if (missing_layers.empty()) return;
    const std::string missing = fmt::format("{}", fmt::join(missing_layers, ", "));
    TANDEM_ENV_CHECK(config.sandbox != Sandbox::kRequire, "--rm-sandbox require: this machine cannot give",
                     missing + "; use --rm-sandbox auto to go as far as it can");
    if (!config.warn_of_missing_layers || warned.exchange(true)) return;
    base::log_warning(
        "the sandbox of the reward code is incomplete, for this machine cannot give {}; the code may reach what that "
        "layer would close (--rm-sandbox require refuses such a machine)",
        missing);
  }

  // Makes a process load the reward, which a fork of the warm parent has done already; returns the dialect.
  std::string load(ChildProcess& child) const {
    const base::Json facts = child.call("load",
                                        {{"rm_type", config.rm_type},
                                         {"custom_rm_path", config.custom_rm_path},
                                         {"reward_key", config.reward_key},
                                         {"group_rm", config.group_rm},
                                         {"label_key", config.label_key},
                                         {"arguments", config.arguments},
                                         {"sandboxed", config.worker.sandboxed}},
                                        config.worker.deadline_s);
    try {
      return facts.at("dialect").get<std::string>();
    } catch (const base::Json::exception&) {
      throw WorkerError("grader worker answered something else than a result");
    }
  }

  // Throws what is wrong with the reward, or with this machine.
  void start_warm_parent() {
    warm_parent.reset();
    auto started = std::make_unique<ChildProcess>(config.worker, "grader", write_output());
    judge(started->missing_layers());
    const std::string found = load(*started);
    warm_parent = std::move(started);
    const std::lock_guard lock(mutex);
    dialect = found;
  }

  std::unique_ptr<ChildProcess> fork_worker() {
    const std::lock_guard lock(warm_parent_mutex);
    if (warm_parent == nullptr || !warm_parent->alive()) start_warm_parent();
    try {
      return std::make_unique<ChildProcess>(*warm_parent, config.worker, write_output());
    } catch (const WorkerError&) {
      warm_parent.reset();
      throw;
    }
  }

  std::function<void(std::string_view)> write_output() {
    return [this](std::string_view text) { output.write(text); };
  }

  // A process that has loaded the reward. Throws what went wrong; the slot is then empty. While a neighbour's fork bomb
  // uses up the processes a start fails, so it is tried until that neighbour's deadline has passed.
  void start_child(Slot& slot) {
    const auto give_up = Clock::now() + std::chrono::duration<double>(config.deadline_s) + kBombGrace;
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
    auto child = fork_worker();
    ChildProcess& started = *child;
    {
      const std::lock_guard lock(mutex);
      slot.child = std::move(child);
      if (stopping) started.interrupt();
    }
    load(started);
    const std::lock_guard lock(mutex);
    if (slot.replacing) ++num_restarts;
    slot.replacing = true;
  }

  void drop_child(Slot& slot) {
    std::unique_ptr<ChildProcess> child;
    {
      const std::lock_guard lock(mutex);
      child = std::move(slot.child);
    }
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
      if (failure != nullptr && first_error == nullptr) first_error = failure;
    }
    work_changed.notify_all();
    if (failure != nullptr) return;
    while (std::optional<Job> job = next_job()) {
      try {
        store(*job, grade(slot, *job));
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (first_error == nullptr) first_error = std::current_exception();
        work_changed.notify_all();
        return;
      }
    }
  }

  std::optional<Job> next_job() {
    std::unique_lock lock(mutex);
    work_changed.wait(lock, [&] { return stopping || !jobs.empty(); });
    if (stopping) return std::nullopt;
    Job job = std::move(jobs.front());
    jobs.pop_front();
    return job;
  }

  // Never fails for what user code does: that is a failed grade.
  std::vector<Grade> grade(Slot& slot, const Job& job) {
    if (slot.child != nullptr && !slot.child->alive()) drop_child(slot);
    try {
      if (slot.child == nullptr) start_child(slot);
    } catch (const std::runtime_error& error) {
      return all_failed(job, "not_started", std::string("a new grader could not start: ") + error.what());
    }
    base::Json samples = base::Json::array();
    for (const GradeRequest& sample : job.samples) samples.push_back(to_json(sample));
    std::vector<Grade> grades;
    try {
      const base::Json outcomes = slot.child->call("grade", {{"samples", samples}}, config.deadline_s);
      for (size_t i = 0; i < job.samples.size(); ++i) {
        grades.push_back(to_grade(job.samples[i].sample_id, outcomes.at(i)));
      }
    } catch (const ChildLost& error) {
      drop_child(slot);
      return all_failed(job, reason_class(error.cause()), error.what());
    } catch (const base::Json::exception&) {
      drop_child(slot);
      return all_failed(job, "died", "the grader answered with something other than grades");
    } catch (const EnvironmentError&) {  // a grader that has loaded has no such answer: user code wrote it
      drop_child(slot);
      return all_failed(job, "died", "the grader answered with something other than grades");
    } catch (const UserError& error) {  // a request that cannot be sent
      return all_failed(job, "exception", error.what());
    }
    // What ran out of memory once starts the next call with little left.
    if (std::any_of(grades.begin(), grades.end(), [](const Grade& g) { return g.reason_class == "memory"; }))
      drop_child(slot);
    return grades;
  }

  void store(const Job& job, std::vector<Grade> grades) {
    std::vector<std::string> news;  // the first failure of each class is told at once, the rest is counted
    {
      const std::lock_guard lock(mutex);
      if (stopping) return;
      for (size_t i = 0; i < grades.size(); ++i) {
        const Grade& grade = grades[i];
        if (grade.failed && ++num_failures[grade.reason_class] == 1) {
          news.push_back(
              fmt::format("reward of sample {} failed ({}): {}", grade.sample_id, grade.reason_class, grade.reason));
        }
        results[job.first_result + i] = std::move(grades[i]);
      }
      num_pending -= grades.size();
    }
    for (const std::string& line : news) base::log_warning("{}", line);
    work_changed.notify_all();
  }

  GraderConfig config;
  ScratchFolder scratch;
  OutputFile output;
  std::atomic<bool> warned = false;
  mutable std::mutex mutex;
  std::condition_variable work_changed;
  std::mutex warm_parent_mutex;  // over the warm parent; taken before `mutex`
  std::unique_ptr<ChildProcess> warm_parent;
  std::deque<Slot> slots;
  std::deque<Job> jobs;
  std::vector<Grade> results;  // in submission order
  size_t num_pending = 0;      // results that are not in yet
  int64_t num_restarts = 0;
  std::map<std::string, int64_t> num_failures;
  std::string dialect;
  std::exception_ptr first_error;
  bool stopping = false;
};

Graders::Graders(const GraderConfig& config) {
  check_rm_type(config);
  TANDEM_USER_CHECK(config.num_processes > 0, "number of grader processes: must be at least 1, not",
                    config.num_processes);
  TANDEM_USER_CHECK(config.deadline_s > 0, "deadline of a reward: must be above 0 s, not", config.deadline_s);
  impl_ = std::make_unique<Impl>(config);
  Impl& impl = *impl_;
  try {
    impl.start_warm_parent();
  } catch (const WorkerError& lost) {
    throw EnvironmentError(std::string("cannot start the graders: ") + lost.what());
  }
  impl.slots.resize(static_cast<size_t>(config.num_processes));
  for (Impl::Slot& slot : impl.slots) slot.thread = std::thread([&impl, &slot] { impl.run(slot); });
  std::exception_ptr error;
  {
    std::unique_lock lock(impl.mutex);
    impl.work_changed.wait(lock, [&] {
      return std::all_of(impl.slots.begin(), impl.slots.end(), [](const Impl::Slot& slot) { return slot.ready; });
    });
    error = impl.first_error;
  }
  if (error == nullptr) return;
  impl.stop();
  try {
    std::rethrow_exception(error);
  } catch (const WorkerError& lost) {
    throw EnvironmentError(std::string("cannot start the graders: ") + lost.what());
  }
}

Graders::~Graders() = default;

void Graders::submit(std::vector<GradeRequest> group) {
  if (group.empty()) return;
  {
    const std::lock_guard lock(impl_->mutex);
    const size_t first = impl_->results.size();
    impl_->results.resize(first + group.size());
    impl_->num_pending += group.size();
    if (impl_->config.group_rm) {
      impl_->jobs.push_back({std::move(group), first});
    } else {
      for (size_t i = 0; i < group.size(); ++i) {
        Job job{.samples = {}, .first_result = first + i};
        job.samples.push_back(std::move(group[i]));
        impl_->jobs.push_back(std::move(job));
      }
    }
  }
  impl_->work_changed.notify_all();
}

int64_t Graders::wait(double seconds) {
  std::unique_lock lock(impl_->mutex);
  const auto is_over = [&] { return impl_->num_pending == 0 || impl_->first_error != nullptr; };
  const bool over = impl_->work_changed.wait_for(lock, std::chrono::duration<double>(seconds), is_over);
  return over ? 0 : static_cast<int64_t>(impl_->num_pending);  // collect() throws the error
}

std::vector<Grade> Graders::collect() {
  std::unique_lock lock(impl_->mutex);
  impl_->work_changed.wait(lock, [&] { return impl_->num_pending == 0 || impl_->first_error != nullptr; });
  if (impl_->first_error != nullptr) std::rethrow_exception(impl_->first_error);
  return std::exchange(impl_->results, {});
}

std::map<std::string, int64_t> Graders::failures() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->num_failures;
}

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

const std::string& Graders::scratch_folder() const { return impl_->scratch.path(); }

std::string Graders::dialect() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->dialect;
}

}  // namespace tandem::text
