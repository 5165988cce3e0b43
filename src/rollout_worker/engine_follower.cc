#include "rollout_worker/engine_follower.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "rollout_worker/worker_engine.h"
#include "session/stop_signal.h"

namespace tandem::rollout_worker {

namespace {

// Waits for the first rank to join the run, and returns the run's Welcome.
sampling::Welcome welcome_of(EngineRanks& ranks) {
  sampling::Message message = ranks.next();
  if (auto* const welcome = std::get_if<sampling::Welcome>(&message)) return std::move(*welcome);
  const auto* const failed = std::get_if<sampling::Failed>(&message);
  TANDEM_CHECK(failed != nullptr, "the first rank of an engine begins with what the run has said");
  if (failed->is_users) throw UserError(failed->why);
  throw EnvironmentError(failed->why);
}

class Follower {
 public:
  Follower(const config::TrainConfig& config, session::ModelSession& session, EngineRanks& ranks,
           const sampling::Welcome& welcome)
      : ranks_(ranks), engine_(config, session, ranks, welcome) {}

  void follow() {
    while (!is_over_) {
      sampling::Message message = ranks_.next();
      std::visit([this](const auto& m) { take(m); }, message);
    }
  }

 private:
  void take(const sampling::Weights& piece) { engine_.weights().take(piece, {}); }
  void take(const sampling::CopyWeights& message) { engine_.weights().take(message); }
  void take(const sampling::WeightChecksums& message) { engine_.weights().take(message); }
  void take(const sampling::Open& /*rollout*/) {
    engine_.follow_rollout([] { return session::stop_requested(); });
  }
  void take(const sampling::Alive& /*question*/) { ranks_.any_of(session::stop_requested()); }
  void take(const sampling::Stop& /*stop*/) { is_over_ = true; }
  template <typename Other>
  void take(const Other& /*message*/) {
    TANDEM_CHECK(false, "the first rank of an engine passes on what the others do not need");
  }

  EngineRanks& ranks_;
  WorkerEngine engine_;
  bool is_over_ = false;
};

}  // namespace

void follow_engine(const config::TrainConfig& config, session::ModelSession& session, EngineRanks& ranks) {
  try {
    const sampling::Welcome welcome = welcome_of(ranks);
    session::defer_stops("stopping: this process's engine leaves the run (a second signal ends it at once)");
    Follower(config, session, ranks, welcome).follow();
  } catch (const device::PeerLost& error) {
    throw EnvironmentError(fmt::format("another process of this engine is gone: {}", error.what()));
  }
}

}  // namespace tandem::rollout_worker
