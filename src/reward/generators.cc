#include "reward/generators.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "base/bell.h"
#include "base/check.h"
#include "base/log.h"
#include "reward/generate_messages.h"
#include "worker/message.h"
#include "worker/worker_pool.h"

namespace tandem::reward {
namespace {

constexpr auto kGenerateFlag = "--custom-generate-function-path";

// A process goes on for so long before it answers, where nothing happens: long where nobody waits for the answer, and
// not long where the engine is at work for it.
constexpr double kTurnS = 0.05;
constexpr double kEngineTurnS = 0.004;
// A process watches the limit of time itself, and may take so much longer.
constexpr double kOwnWatchGraceS = 2.0;
// A sample is given up after so many lost processes.
constexpr int kMaxLosses = 3;

}  // namespace

// Each process has a thread, which talks to it. The mutex guards what the threads share.
struct Generators::Impl {
  struct Sample {
    GenerateRequest request;
    uint64_t attempt = 1;
    int losses = 0;
    bool alone = false;    // it was once lost with others, and is made beside no other sample
    uint64_t run = 0;      // the number by which its process knows it; 0: it waits for a process
    size_t generator = 0;  // the index of the process's generator
  };
  struct Generator {
    size_t index;
    worker::Worker& worker;                           // only the generator's thread uses it, without the mutex
    std::map<uint64_t, uint64_t> sample_of_run = {};  // the samples under way in the process
    base::Json answers = base::Json::array();         // the process gets these with the next call,
    base::Json cancelled = base::Json::array();       // and ends these runs
    int64_t num_asked = 0;                            // calls to the engine that are not answered
    bool all_wait = false;                            // all samples wait for the engine
    bool is_alone = false;                            // its sample is to be made beside no other
  };
  // Describes the next call to a process.
  struct Turn {
    bool is_first = false;  // the process has no sample under way yet
    base::Json message;
  };

  explicit Impl(const GeneratorConfig& generator_config) : config(generator_config), pool(pool_config()) {}

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    pool.interrupt();
    work.notify_all();
    pool.join();
  }

  void start() {
    pool.start();
    for (size_t i = 0; i < pool.size(); ++i) generators.push_back({.index = i, .worker = pool.worker(i)});
    pool.serve([this](size_t index) { serve(generators[index]); });
  }

  worker::WorkerPoolConfig pool_config() const {
    worker::WorkerPoolConfig result;
    result.mode = "generator";
    result.code = config;
    result.code.code_flag = kGenerateFlag;
    result.code.code_path = config.function;
    result.load_arguments = {
        {"function", config.function},           {"model_directory", config.model_directory},
        {"metadata_key", config.metadata_key},   {"arguments", config.arguments},
        {"timeout_s", config.limits.timeout_s},  {"endpoint", config.endpoint},
        {"max_sequences", config.max_sequences}, {"max_further_sequences", config.max_further_sequences}};
    result.num_processes = config.limits.num_processes;
    result.memory_bytes = config.memory_bytes;
    result.calls_at_once = config.limits.max_samples;
    result.what_runs = kGenerateFlag;
    result.who_runs = fmt::format("the processes of {}", kGenerateFlag);
    result.warn_of_leftovers = [](const std::string& left) {
      base::log_warning(
          "{} left {} behind, so its process is replaced, as in later cases (perf/generate_restarts): let the function "
          "end what it starts",
          kGenerateFlag, left);
    };
    return result;
  }

  void serve(Generator& generator) {
    try {
      while (true) {
        Turn turn;
        {
          std::unique_lock lock(mutex);
          work.wait(lock, [&] { return stopping || has_work(generator); });
          if (stopping) return;
          turn = next_turn(generator);
        }
        advance(generator, std::move(turn));
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (error == nullptr) error = std::current_exception();
      tell();
    }
  }

  // Wakes whoever waits for events. The caller has the lock.
  void tell() {
    news.notify_all();
    if (!events.empty() || error != nullptr) bell.ring();
  }

  // The caller of the next three functions has the lock.
  bool may_take(const Generator& generator) const {
    if (waiting.empty() || generator.worker.is_retiring() || generator.is_alone) return false;
    if (generator.sample_of_run.empty()) return true;
    return std::ssize(generator.sample_of_run) < config.limits.max_samples && !samples.at(waiting.front()).alone;
  }

  bool has_work(const Generator& generator) const {
    const bool goes_on = !generator.sample_of_run.empty() && !generator.all_wait;
    return goes_on || !generator.answers.empty() || !generator.cancelled.empty() || may_take(generator);
  }

  Turn next_turn(Generator& generator) {
    Turn turn;
    turn.is_first = generator.sample_of_run.empty();
    base::Json begin = base::Json::array();
    // Each process takes a share of the samples that wait, so that none has all of them while others have nothing.
    const size_t share = (waiting.size() + generators.size() - 1) / generators.size();
    while (begin.size() < share && may_take(generator)) {
      const uint64_t sample_id = waiting.front();
      waiting.pop_front();
      Sample& sample = samples.at(sample_id);
      sample.run = ++last_run;
      sample.generator = generator.index;
      generator.is_alone = sample.alone;
      generator.sample_of_run[sample.run] = sample_id;
      begin.push_back(to_json(sample.request, sample.run));
    }
    const double wait_s = generator.num_asked > std::ssize(generator.answers) ? kEngineTurnS : kTurnS;
    generator.num_asked -= std::ssize(generator.answers);
    turn.message = {{"begin", std::move(begin)},
                    {"answers", std::exchange(generator.answers, base::Json::array())},
                    {"cancelled", std::exchange(generator.cancelled, base::Json::array())},
                    {"wait_s", wait_s}};
    generator.all_wait = false;
    return turn;
  }

  void store(Generator& generator, GeneratorReply reply) {
    const std::lock_guard lock(mutex);
    for (GeneratorReply::Asked& asked : reply.asked) {
      const auto run = generator.sample_of_run.find(asked.run);
      if (run == generator.sample_of_run.end()) continue;  // it was cancelled meanwhile
      asked.call.sample_id = run->second;
      asked.call.attempt = samples.at(run->second).attempt;
      events.emplace_back(std::move(asked.call));
      ++generator.num_asked;
    }
    for (GeneratorReply::Ended& ended : reply.ended) {
      const auto run = generator.sample_of_run.find(ended.run);
      if (run == generator.sample_of_run.end()) {
        keep_refusals(ended.result);
        continue;
      }
      const uint64_t sample_id = run->second;
      const bool has_company = generator.sample_of_run.size() > 1;
      // The process counts too, and says more; memory is planned for no more than these.
      if (std::ssize(ended.result.sequence_begins) > config.max_further_sequences) {
        ended.result.failure = "the process returned more sequences than a sample may have";
      }
      warn_of_requests(ended.result);
      generator.sample_of_run.erase(run);
      // A process that ran out of memory starts the next sample with little left; a sample that did not end in time may
      // still run.
      if (ended.hung || ended.out_of_memory) generator.worker.retire();
      if (ended.out_of_memory && has_company) {
        keep_refusals(ended.result);
        repeat(sample_id, ended.result.failure);
      } else {
        finish(sample_id, std::move(ended.result));
      }
    }
    generator.all_wait = reply.all_wait;
    tell();
  }

  // Warns once of each thing that makes an endpoint's answers other training data than an agent's author expects. The
  // caller has the lock.
  void warn_of_requests(const Generated& result) {
    if (result.endpoint_restarts > 0 && !std::exchange(warned_of_restarts, true)) {
      base::log_warning(
          "an agent's request does not continue what was sampled for it, so it begins another sequence, here and in "
          "later cases (multi_turn/endpoint/restarts; the output of --custom-generate-function-path says why)");
    }
    if (result.endpoint_untrained > 0 && !std::exchange(warned_of_untrained, true)) {
      base::log_warning(
          "an agent's request asks for another temperature, top-p, top-k or min-p than the run's, so its answer is not "
          "trained on, here and in later cases (multi_turn/endpoint/untrained): leave them out of the agent's "
          "settings, "
          "or give the run the same ones");
    }
  }

  // Keeps the refusals of a result that nobody gets until the next sample ends: other clients than the sample's may
  // have caused them. The caller has the lock.
  void keep_refusals(const Generated& result) { num_refused_before += result.endpoint_refused; }

  // The caller of the next three functions has the lock.
  void finish(uint64_t sample_id, Generated result) {
    result.endpoint_refused += std::exchange(num_refused_before, 0);
    result.sample_id = sample_id;
    result.attempt = samples.at(sample_id).attempt;
    samples.erase(sample_id);
    events.emplace_back(std::move(result));
  }

  void fail(uint64_t sample_id, const std::string& why, bool is_machines) {
    Generated result;
    result.failure = why;
    result.machine_failed = is_machines;
    finish(sample_id, std::move(result));
  }

  void repeat(uint64_t sample_id, const std::string& why) {
    Sample& sample = samples.at(sample_id);
    ++sample.attempt;
    sample.alone = true;
    sample.run = 0;
    waiting.push_front(sample_id);
    work.notify_all();
    if (num_repeated++ > 0) return;
    base::log_warning(
        "{}: a process was lost while several samples were running in it ({}); each of them begins again, alone, and "
        "so in later cases",
        kGenerateFlag, why);
  }

  // Makes one call to the process. What user code does makes samples fail, and never this function.
  void advance(Generator& generator, Turn turn) {
    try {
      // A process that died with samples under way is lost to the call below, so that they begin again.
      if (turn.is_first) generator.worker.make_ready();
    } catch (const std::runtime_error& why) {
      const std::lock_guard lock(mutex);
      for (const auto& [run, sample_id] : std::exchange(generator.sample_of_run, {})) {
        fail(sample_id, std::string("a new process could not start: ") + why.what(), /*is_machines=*/true);
      }
      forget(generator);
      tell();
      return;
    }
    try {
      store(generator,
            reply_of(generator.worker.call("go_on", turn.message, config.limits.timeout_s + kOwnWatchGraceS)));
    } catch (const worker::ChildLost& lost) {
      const bool is_known = lost.cause() == worker::LossCause::kMemory || lost.cause() == worker::LossCause::kDeadline;
      lose(generator, is_known,
           lost.cause() == worker::LossCause::kDeadline
               ? fmt::format("computed without an await: the limit of {:g} s passed", config.limits.timeout_s)
               : lost.what());
    } catch (const UserError& refused) {
      lose(generator, /*is_known=*/true, refused.what());  // a message that cannot be sent
    } catch (const std::runtime_error&) {                  // user code wrote the answer
      lose(generator, /*is_known=*/true,
           "the process answered with something other than what a generate function does");
    } catch (const base::Json::exception&) {
      lose(generator, /*is_known=*/true,
           "the process answered with something other than what a generate function does");
    }
    rest(generator);
  }

  // Lets the process rest where it has nothing under way.
  void rest(Generator& generator) {
    {
      const std::lock_guard lock(mutex);
      if (!generator.sample_of_run.empty()) return;
      generator.is_alone = false;
      generator.num_asked = 0;
      generator.answers.clear();
    }
    work.notify_all();
    generator.worker.rest();
  }

  // Forgets what the process had: it is gone, or is to be told nothing more of it. The caller has the lock.
  static void forget(Generator& generator) {
    generator.sample_of_run.clear();
    generator.answers.clear();
    generator.cancelled.clear();
    generator.num_asked = 0;
    generator.is_alone = generator.all_wait = false;
  }

  // Fails or repeats the samples of a process that is no more. `is_known`: what happened would happen to a sample each
  // time that it is made, if it was alone.
  void lose(Generator& generator, bool is_known, const std::string& why) {
    generator.worker.drop();
    const std::lock_guard lock(mutex);
    if (stopping) return;
    std::map<uint64_t, uint64_t> lost = std::exchange(generator.sample_of_run, {});
    const bool was_alone = lost.size() == 1;
    for (auto entry = lost.rbegin(); entry != lost.rend(); ++entry) {  // each goes to the front
      const uint64_t sample_id = entry->second;
      const bool is_last = ++samples.at(sample_id).losses >= kMaxLosses;
      if (was_alone && (is_known || is_last)) {
        fail(sample_id, why, /*is_machines=*/false);
      } else {
        repeat(sample_id, why);
      }
    }
    forget(generator);
    tell();
    work.notify_all();
  }

  GeneratorConfig config;
  worker::WorkerPool pool;
  mutable std::mutex mutex;
  std::condition_variable work, news;  // waited for by the threads, and by take()
  base::Bell bell;                     // rung while there are events
  std::map<uint64_t, Sample> samples;  // by id; those that have not ended
  std::deque<uint64_t> waiting;        // samples that no process has yet
  std::vector<GeneratorEvent> events;
  std::deque<Generator> generators;  // one a worker
  uint64_t last_run = 0;
  int64_t num_repeated = 0;
  int64_t num_refused_before = 0;  // requests of endpoints that are counted with the next sample that ends
  bool warned_of_restarts = false, warned_of_untrained = false;
  std::exception_ptr error;
  bool stopping = false;
};

Generators::Generators(const GeneratorConfig& config) {
  TANDEM_CHECK(config.limits.num_processes > 0 && config.limits.max_samples > 0, config.limits.num_processes);
  TANDEM_CHECK(config.limits.timeout_s > 0, config.limits.timeout_s);
  impl_ = std::make_unique<Impl>(config);
  impl_->start();
}

Generators::~Generators() = default;

void Generators::begin(GenerateRequest request) {
  const uint64_t sample_id = request.sample_id;
  {
    const std::lock_guard lock(impl_->mutex);
    Impl::Sample sample;
    sample.request = std::move(request);
    const bool is_new = impl_->samples.emplace(sample_id, std::move(sample)).second;
    TANDEM_CHECK(is_new, "sample", sample_id, "is running already");
    impl_->waiting.push_back(sample_id);
  }
  impl_->work.notify_all();
}

void Generators::answer(uint64_t sample_id, uint64_t attempt, uint64_t call, EngineAnswer answer) {
  {
    const std::lock_guard lock(impl_->mutex);
    const auto sample = impl_->samples.find(sample_id);
    if (sample == impl_->samples.end() || sample->second.attempt != attempt || sample->second.run == 0) return;
    impl_->generators[sample->second.generator].answers.push_back(to_json(answer, sample->second.run, call));
  }
  impl_->work.notify_all();
}

std::vector<GeneratorEvent> Generators::take(double seconds) {
  std::unique_lock lock(impl_->mutex);
  impl_->news.wait_for(lock, std::chrono::duration<double>(seconds),
                       [&] { return !impl_->events.empty() || impl_->error != nullptr; });
  if (impl_->error != nullptr) std::rethrow_exception(impl_->error);
  impl_->bell.silence();
  return std::exchange(impl_->events, {});
}

int Generators::descriptor() const { return impl_->bell.descriptor(); }

void Generators::cancel(uint64_t sample_id) {
  {
    const std::lock_guard lock(impl_->mutex);
    std::erase_if(impl_->events, [&](const GeneratorEvent& event) {
      const bool is_of_sample = std::visit([&](const auto& e) { return e.sample_id == sample_id; }, event);
      if (const auto* result = std::get_if<Generated>(&event); is_of_sample && result != nullptr) {
        impl_->keep_refusals(*result);
      }
      return is_of_sample;
    });
    if (impl_->events.empty() && impl_->error == nullptr) impl_->bell.silence();
    const auto sample = impl_->samples.find(sample_id);
    if (sample == impl_->samples.end()) return;
    if (const uint64_t run = sample->second.run; run == 0) {
      std::erase(impl_->waiting, sample_id);
    } else {
      Impl::Generator& generator = impl_->generators[sample->second.generator];
      generator.sample_of_run.erase(run);
      generator.cancelled.push_back(run);
    }
    impl_->samples.erase(sample);
  }
  impl_->work.notify_all();
}

int64_t Generators::restarts() const { return impl_->pool.restarts(); }

int64_t Generators::repeated() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->num_repeated;
}

std::vector<int64_t> Generators::process_ids() const { return impl_->pool.process_ids(); }

}  // namespace tandem::reward
