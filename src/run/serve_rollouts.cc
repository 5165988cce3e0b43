#include "run/serve_rollouts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "mesh/agreement.h"
#include "mesh/channel.h"
#include "mesh/launch_variables.h"
#include "plan/plan.h"
#include "run/generator_setup.h"
#include "run/own_engine.h"
#include "run/ranks.h"
#include "run/rollout_workers.h"
#include "run/served_rollout.h"
#include "run/stop_signal.h"
#include "run/worker_weights.h"

namespace tandem::run {

namespace {

using base::Clock;
using base::seconds_since;

constexpr double kLookEvery = 0.2;  // seconds between two looks at the stop signal
constexpr double kAliveEvery = 1.0;

// The run may still load.
mesh::Channel find_run(const config::TrainConfig& config) {
  const std::string address = workers_address(config.output.save);
  const Clock::time_point begin = Clock::now();
  while (true) {
    if (std::optional<mesh::OwnedDescriptor> socket = mesh::connect_locally(address))
      return {std::move(*socket), config.mesh.timeout_s()};
    TANDEM_ENV_CHECK(
        seconds_since(begin) < config.mesh.timeout_s(),
        fmt::format("no run with --save {} and --rollout-num-gpus goes on on this machine (waited for {:g} "
                    "s, --distributed-timeout-minutes)",
                    config.output.save, config.mesh.timeout_s()));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// Waits as long as it takes, since the run may train meanwhile. UserError: the run refuses this process.
Welcome greet(mesh::Channel& run, const config::TrainConfig& config, const config::RunMode& mode,
              const ModelSession& session) {
  run.send(to_bytes(Hello{.facts = mesh::text_of(own_facts(config, mode)),
                          .weight_hash = session.empty_store().info().hash,
                          .process = getpid()}));
  while (true) {
    const std::optional<std::string> frame = run.receive(kLookEvery);
    if (!frame) continue;
    WorkerMessage message = worker_message(*frame);
    if (auto* const welcome = std::get_if<Welcome>(&message)) return std::move(*welcome);
    if (const auto* const refused = std::get_if<Refused>(&message)) throw UserError(refused->why);
    TANDEM_ENV_CHECK(std::holds_alternative<Stop>(message), "the run does not answer as this program's would");
    throw EnvironmentError("the run has ended before this process joined it");
  }
}

plan::TrainPlan plan_of(const config::TrainConfig& config, const ModelSession& session, const Welcome& welcome) {
  const plan::PlanInputs facts = {.longest_prompt = welcome.longest_prompt,
                                  .eval_context_tokens = welcome.eval_context_tokens,
                                  .eval_sequences = welcome.eval_sequences,
                                  .role = plan::Role::kRollout};
  return plan::plan_or_refuse(config, session.config(), facts,
                              plan::device_memory(config, device::device_bytes(session.device())));
}

config::TrainConfig with_line_types(config::TrainConfig config, const Welcome& welcome) {
  config.reward.line_types = welcome.line_types;
  return config;
}

RewardContext context_of(const config::TrainConfig& config, const config::RunMode& mode, const Welcome& welcome) {
  RewardContext context = reward_context(config.data, mode);
  context.output_path = welcome.user_output;
  return context;
}

std::optional<text::GeneratorConfig> generation_of(const config::TrainConfig& config, const ModelSession& session,
                                                   const RewardContext& context) {
  if (!config.custom_generate.is_on()) return std::nullopt;
  return generator_config(config.custom_generate, config.reward, session.directory(), context);
}

// In the order in which memory is taken.
class Worker {
 public:
  Worker(const config::TrainConfig& config, const config::RunMode& mode, mesh::Channel& run, ModelSession& session,
         const Welcome& welcome)
      : config_(with_line_types(config, welcome)),
        run_(run),
        session_(session),
        plan_(plan_of(config_, session, welcome)),
        memory_(config_.memory, plan_, session.device()),
        evaluation_(config_.eval, config_.data, config_.reward, welcome.eval_line_types),
        context_(context_of(config_, mode, welcome)),
        rewards_(config_.reward, config_.dynamic_sampling, context_, evaluation_,
                 generation_of(config_, session, context_)) {
    session_.allocate_weights();
    memory_.add_persistent(memory::Tag::kWeights, session_.bytes());
    weights_.emplace(session_, run_, welcome);
    memory_.enter(memory::Phase::kRollout);
  }

  // Until the run ends, or this process is asked to stop.
  void work() {
    run_.send(to_bytes(Prepared{.maps_weights = weights_->maps()}));
    while (!is_over_) {
      if (stop_requested()) return run_.send(to_bytes(Leaving{}));
      take_messages();
      if (rollout_) sample();
    }
  }

 private:
  void take_messages() {
    const bool waits = !rollout_ || !rollout_->has_work();
    std::optional<std::string> frame = run_.receive(waits ? kLookEvery : 0.0);
    while (frame) {
      WorkerMessage message = worker_message(*frame);
      std::visit([this](auto& m) { take(m); }, message);
      if (is_over_) return;  // the run has its answer, and may be gone already
      frame = run_.receive(0.0);
    }
  }

  void take(const Weights& message) { take_weights(message); }
  void take(const CopyWeights& message) { take_weights(message); }
  void take(const WeightChecksums& message) { take_weights(message); }
  template <typename Message>
  void take_weights(const Message& message) {
    TANDEM_ENV_CHECK(!rollout_, "the run sends weights within a rollout");
    if (weights_->take(message) && engine_) engine_->update_weights();
  }

  void take(const Open& open) {
    if (!engine_) engine_.emplace(config_, session_, plan_, memory_);
    if (rollout_) rollout_->close();
    rollout_.reset();
    engine_->update_weights();
    rollout_.emplace(open, WorkerParts{.config = config_,
                                       .evaluation = evaluation_,
                                       .context_tokens = session_.config().max_positions,
                                       .engine = engine_->engine(),
                                       .text = session_.text(),
                                       .rewards = rewards_});
  }

  void take(Task& task) {
    if (is_of_rollout(task.rollout)) rollout_->add(std::move(task));
  }
  void take(const Abort& abort) {
    if (is_of_rollout(abort.rollout)) rollout_->abort(abort.index);
  }
  void take(const Close& close) {
    if (!is_of_rollout(close.rollout)) return;
    rollout_->close();
    rollout_.reset();
  }
  void take(const Stop& /*stop*/) {
    is_over_ = true;
    run_.send(to_bytes(Leaving{}));
  }
  template <typename Other>
  void take(const Other& /*message*/) {
    TANDEM_ENV_CHECK(false, "the run says what only a process that samples does");
  }

  void sample() {
    if (const int64_t count = rollout_->num_to_pull(); count > 0)
      run_.send(to_bytes(Pull{.rollout = rollout_->number(), .count = count}));
    if (!rollout_->has_work()) return;
    if (std::optional<Done> done = rollout_->advance()) run_.send(to_bytes(*done));
    if (seconds_since(last_alive_) < kAliveEvery) return;
    last_alive_ = Clock::now();
    run_.send(to_bytes(Alive{}));
  }

  bool is_of_rollout(uint64_t number) const { return rollout_ && rollout_->number() == number; }

  const config::TrainConfig config_;
  mesh::Channel& run_;
  ModelSession& session_;
  const plan::TrainPlan plan_;
  RunMemory memory_;
  const Evaluation evaluation_;
  const RewardContext context_;
  Rewards rewards_;
  std::optional<WorkerWeights> weights_;
  std::optional<OwnEngine> engine_;       // from the first weights on
  std::optional<ServedRollout> rollout_;  // that goes on
  Clock::time_point last_alive_;
  bool is_over_ = false;
};

// What ends this process is told to the run, which says it if no other process samples.
void tell(mesh::Channel& run, const std::exception& error, bool is_users) {
  try {
    run.send(to_bytes(Failed{.why = error.what(), .is_users = is_users}));
  } catch (const mesh::ChannelClosed&) {
  }
}

}  // namespace

int serve_rollouts(const config::TrainConfig& given, const config::RunMode& mode) {
  given.check();
  if (mesh::launch_variables()) base::set_log_level(base::LogLevel::kError);
  ModelSession session(given.model, given.lora);
  mesh::Channel run = find_run(given);
  try {
    const Welcome welcome = greet(run, given, mode, session);
    base::log_info("samples for the run {}", given.output.save);
    defer_stops("stopping: others get the groups that this process has (a second signal ends it at once)");
    Worker(given, mode, run, session, welcome).work();
    return 0;
  } catch (const mesh::ChannelClosed& error) {
    throw EnvironmentError(fmt::format("the run {}: {}", given.output.save, error.what()));
  } catch (const UserError& error) {
    tell(run, error, /*is_users=*/true);
    throw;
  } catch (const std::exception& error) {
    tell(run, error, /*is_users=*/false);
    throw;
  }
}

}  // namespace tandem::run
