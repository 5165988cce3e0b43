#include "rollout_worker/serve_rollouts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/running_time.h"
#include "mesh/agreement.h"
#include "mesh/channel.h"
#include "mesh/hosts.h"
#include "rollout_worker/engine_follower.h"
#include "rollout_worker/engine_ranks.h"
#include "rollout_worker/served_rollout.h"
#include "rollout_worker/weight_links.h"
#include "rollout_worker/worker_engine.h"
#include "session/generator_setup.h"
#include "session/ranks.h"
#include "session/run_address.h"
#include "session/stop_signal.h"
#include "session/user_output.h"

namespace tandem::rollout_worker {

namespace {

using base::Clock;
using base::seconds_since;

constexpr double kLookEvery = 0.2;  // seconds between two looks at the stop signal
constexpr double kAskEvery = 1.0;
constexpr double kFarewell = 2.0;  // seconds that the run has to read the last message

// Measures the run's silence. A run says all the while that it lives, also while it trains for long.
class RunSilence {
 public:
  explicit RunSilence(double timeout_s) : timeout_s_(timeout_s) {}
  // Call it after each look for messages, once all of them are taken. Throws EnvironmentError if the run is silent for
  // too long.
  void look(bool has_spoken) {
    if (has_spoken) silence_.reset();
    TANDEM_ENV_CHECK(
        silence_.seconds() <= timeout_s_,
        fmt::format("the run has said nothing for {:g} s (--distributed-timeout-minutes): its first process "
                    "is stopped or frozen",
                    timeout_s_));
  }

 private:
  const double timeout_s_;
  base::RunningTime silence_;
};

// Greets the run and waits for its Welcome as long as it takes, since the run may train meanwhile. Throws UserError if
// the run refuses this process.
sampling::Welcome greet(mesh::Channel& run, const config::TrainConfig& config, const config::RunMode& mode,
                        const session::ModelSession& session, const sampling::WeightDoor& door) {
  const mesh::RankFacts facts =
      session::own_facts(config.model, mode, config.is_inexact_device, session.ops().name());
  run.send(to_bytes(sampling::Hello{.facts = mesh::text_of(facts),
                                    .weight_hash = session.empty_store().info().hash,
                                    .process = getpid(),
                                    .machine = mesh::machine_id(),
                                    .door = door}));
  RunSilence silence(config.mesh.timeout_s());
  while (true) {
    const std::optional<std::string> frame = run.receive(kLookEvery);
    silence.look(frame.has_value());
    if (!frame) continue;
    sampling::Message message = sampling::message_of(*frame);
    if (std::holds_alternative<sampling::Alive>(message)) continue;
    if (auto* const welcome = std::get_if<sampling::Welcome>(&message)) return std::move(*welcome);
    if (const auto* const refused = std::get_if<sampling::Refused>(&message)) throw UserError(refused->why);
    TANDEM_ENV_CHECK(std::holds_alternative<sampling::Stop>(message),
                     "the run does not answer as this program's would");
    throw EnvironmentError("the run has ended before this process joined it");
  }
}

// Half of the time after which a worker that is silent is missed: one that waits for a frozen one is not silent so
// long.
double link_patience_s(const config::MeshOptions& mesh) { return mesh.rollout_health_check_timeout / 2.0; }

config::TrainConfig with_line_types(config::TrainConfig config, const sampling::Welcome& welcome) {
  config.reward.line_types = welcome.line_types;
  return config;
}

session::RewardContext context_of(const config::TrainConfig& config, const config::RunMode& mode,
                                  const sampling::Welcome& welcome) {
  session::RewardContext context = session::reward_context(config.data, mode);
  context.output_path = session::user_output_file(welcome.user_output);
  return context;
}

std::optional<reward::GeneratorConfig> generation_of(const config::TrainConfig& config,
                                                     const session::ModelSession& session,
                                                     const session::RewardContext& context) {
  if (!config.custom_generate.is_on()) return std::nullopt;
  return session::generator_config(config.custom_generate, config.reward, session.directory(), context);
}

// Runs in the first process of an engine, or its only one.
class Worker {
 public:
  Worker(const config::TrainConfig& config, const config::RunMode& mode, mesh::Channel& run, WeightLinks& links,
         session::ModelSession& session, EngineRanks& ranks, const sampling::Welcome& welcome)
      : config_(with_line_types(config, welcome)),
        run_(run),
        links_(links),
        session_(session),
        ranks_(ranks),
        engine_(config_, session, ranks, welcome),
        evaluation_(config_.eval, config_.data, config_.reward, welcome.eval_line_types),
        context_(context_of(config_, mode, welcome)),
        rewards_(config_.reward, config_.dynamic_sampling, context_, evaluation_,
                 generation_of(config_, session, context_)) {}

  // Returns whether new weights are copied from the run's memory: then they need no connection.
  bool maps_weights() { return engine_.weights().maps(); }

  // Works until the run ends, or a process of this engine is asked to stop.
  void work() {
    run_.send(
        to_bytes(sampling::Prepared{.maps_weights = maps_weights(), .copies_ahead = engine_.weights().copies_ahead()}));
    while (!is_over_) {
      if (is_asked_to_stop()) return leave();
      take_messages();
      take_pieces();
      say_copied();
      if (rollout_) rollout_->client.work();
    }
  }

 private:
  void take_messages() {
    // Pieces are taken between two rollouts alone.
    const std::array<int, 2> news = {engine_.weights().descriptor(), links_.descriptor()};
    std::optional<std::string> frame =
        rollout_ ? rollout_->client.receive(kLookEvery, std::span(news).first(1)) : run_.receive(kLookEvery, news);
    silence_.look(frame.has_value());
    while (frame) {
      sampling::Message message = sampling::message_of(*frame);
      std::visit([this](auto& m) { take(m); }, message);
      if (is_over_) return;  // the run has its answer, and may be gone already
      frame = run_.receive(0.0);
    }
  }

  // Returns whether a process of this engine was asked to stop. The other processes are asked once a second: they do
  // not talk with the run.
  bool is_asked_to_stop() {
    if (session::stop_requested()) return true;
    if (ranks_.size() == 1 || seconds_since(last_asked_) < kAskEvery) return false;
    last_asked_ = Clock::now();
    if (rollout_) return engine_.any_says(false);
    ranks_.pass_on(sampling::Alive{});
    return ranks_.any_of(false);
  }

  void take(const sampling::Chain& chain) { links_.take_place(chain); }
  // Takes the pieces that have come, between two rollouts.
  void take_pieces() {
    while (!rollout_) {
      const std::optional<WeightLinks::Arrival> arrival = links_.next();
      if (!arrival) return;
      if (!arrival->bytes) {
        run_.send(to_bytes(sampling::ChainBroken{}));
        continue;
      }
      take_weights(arrival->piece, *arrival->bytes);
      run_.send(to_bytes(sampling::Alive{}));
    }
  }
  // Says that weights are in the second copy, once they are.
  void say_copied() {
    if (const std::optional<uint64_t> version = engine_.weights().copied())
      run_.send(to_bytes(sampling::CopiedWeights{*version}));
  }
  void take(const sampling::CopyWeights& message) {
    if (message.is_ahead) {
      engine_.weights().copy_ahead(message);
    } else {
      take_weights(message);
    }
  }
  void take(const sampling::WeightChecksums& message) { take_weights(message); }
  template <typename Message, typename... Source>
  void take_weights(const Message& message, const Source&... source) {
    TANDEM_ENV_CHECK(!rollout_, "the run sends weights within a rollout");
    ranks_.pass_on(message);
    if (engine_.weights().take(message, source...))
      run_.send(to_bytes(sampling::TookWeights{session_.trained().version()}));
  }

  void take(const sampling::Open& open) {
    close_rollout();
    links_.let_wait(true);
    ranks_.pass_on(open);
    rollout::Engine& engine = engine_.begin_rollout();
    rollout_.emplace(
        open,
        WorkerParts{.config = config_, .evaluation = evaluation_, .model = session_.config(), .rewards = rewards_},
        engine, session_.text(), run_, std::exchange(still_since_, std::nullopt));
  }

  void take(sampling::LendSamples& loan) {
    if (rollout_) rollout_->client.take(loan);
  }
  void take(sampling::LendGrading& loan) {
    if (rollout_) rollout_->client.take(loan);
  }
  void take(const sampling::Abort& abort) {
    if (rollout_) rollout_->client.take(abort);
  }
  void take(const sampling::Pause& pause) {
    if (rollout_) rollout_->client.take(pause);
    stand_still();
  }
  void take(const sampling::Close& close) {
    if (!rollout_ || rollout_->number != close.rollout) return;
    close_rollout();
    stand_still();
  }
  void take(const sampling::Stop& /*stop*/) {
    is_over_ = true;
    leave();
  }
  void take(const sampling::Alive& /*beat*/) {}
  template <typename Other>
  void take(const Other& /*message*/) {
    TANDEM_ENV_CHECK(false, "the run says what only a process that samples does");
  }

  // The engine has nothing to do any more, until it is lent samples again.
  void stand_still() {
    if (!still_since_) still_since_ = Clock::now();
  }
  void close_rollout() {
    if (!rollout_) return;
    rollout_->sampler.abort_all();
    rollout_.reset();
    links_.let_wait(false);
    engine_.end_rollout();
  }
  void leave() {
    run_.send(to_bytes(sampling::Leaving{}));
    close_rollout();
    ranks_.pass_on(sampling::Stop{});
    run_.wait_until_closed(kFarewell);
  }

  const config::TrainConfig config_;
  mesh::Channel& run_;
  WeightLinks& links_;
  RunSilence silence_{config_.mesh.timeout_s()};
  session::ModelSession& session_;
  EngineRanks& ranks_;
  WorkerEngine engine_;
  const evaluation::Evaluation evaluation_;
  const session::RewardContext context_;
  evaluation::Rewards rewards_;
  std::optional<ServedRollout> rollout_;  // rollout that is open now
  std::optional<Clock::time_point> still_since_;
  Clock::time_point last_asked_;
  bool is_over_ = false;
};

// Tells the run what ends this process. The run reports it if no other process samples.
void tell(const std::unique_ptr<mesh::Channel>& run, const std::exception& error, bool is_users) {
  if (!run) return;
  try {
    run->send(to_bytes(sampling::Failed{.why = error.what(), .is_users = is_users}));
    run->wait_until_closed(kFarewell);
  } catch (const mesh::ChannelClosed&) {
  }
}

// Joins the run, in the first process of an engine. What keeps it from that ends the other processes too, in the same
// words.
sampling::Welcome join_run(std::unique_ptr<mesh::Channel>& run, std::optional<WeightLinks>& links,
                           const config::TrainConfig& config, const config::RunMode& mode, const mesh::Launch& launch,
                           const session::ModelSession& session, EngineRanks& ranks) {
  try {
    run = session::find_run(config, launch);
    links.emplace(*run, WeightLinks::Settings{.secret = launch.secret(),
                                              .patience_s = link_patience_s(config.mesh),
                                              .num_parts = ranks.size(),
                                              .whole_bytes = session.empty_store().bytes() * ranks.size()});
    sampling::Welcome welcome = greet(*run, config, mode, session, links->door());
    ranks.pass_on(welcome);
    return welcome;
  } catch (const UserError& error) {
    ranks.pass_on(sampling::Failed{.why = error.what(), .is_users = true});
    throw;
  } catch (const EnvironmentError& error) {
    ranks.pass_on(sampling::Failed{.why = error.what()});
    throw;
  }
}

void lead_engine(const config::TrainConfig& config, const config::RunMode& mode, const mesh::Launch& launch,
                 session::ModelSession& session, EngineRanks& ranks) {
  std::unique_ptr<mesh::Channel> run;
  std::optional<WeightLinks> links;
  try {
    const sampling::Welcome welcome = join_run(run, links, config, mode, launch, session, ranks);
    base::log_info("samples for the run {}", config.output.save);
    session::defer_stops("stopping: others get the groups that this process has (a second signal ends it at once)");
    Worker worker(config, mode, *run, *links, session, ranks, welcome);
    if (!worker.maps_weights()) links->connect_to_run(session::find_run(config, launch));
    worker.work();
  } catch (const mesh::ChannelClosed& error) {
    throw EnvironmentError(
        fmt::format("the run {}: {}; if it still runs, it has given this process up for its silence "
                    "(--rollout-health-check-timeout), and another may join",
                    config.output.save, error.what()));
  } catch (const device::PeerLost& lost) {
    const EnvironmentError error(fmt::format("another process of this engine is gone: {}", lost.what()));
    tell(run, error, /*is_users=*/false);
    throw error;
  } catch (const UserError& error) {
    tell(run, error, /*is_users=*/true);
    throw;
  } catch (const std::exception& error) {
    tell(run, error, /*is_users=*/false);
    throw;
  }
}

}  // namespace

int serve_rollouts(const config::TrainConfig& given, const config::RunMode& mode, const mesh::Launch& launch) {
  given.check();
  const std::unique_ptr<mesh::Mesh> engine =
      session::join_ranks(given.model, given.mesh, mode, launch, given.is_inexact_device);
  session::ModelSession session(given.model, given.lora, given.optimizer, engine->tensor());
  EngineRanks ranks(engine->tensor().host);
  if (ranks.is_first()) {
    lead_engine(given, mode, launch, session, ranks);
  } else {
    follow_engine(given, session, ranks);
  }
  return 0;
}

}  // namespace tandem::rollout_worker
