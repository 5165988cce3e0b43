// New weights, as a process that only samples takes them from the run: it copies them from the memory that the run
// shows, or receives them in pieces. Where several processes hold the model between them each takes its part, and all
// of them have the new weights or none has.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "sampling/engine_ranks.h"
#include "sampling/messages.h"
#include "session/model_session.h"
#include "weights/shown_weights.h"
#include "weights/sync.h"

namespace tandem::sampling {

class WorkerWeights {
 public:
  // Made by all ranks together; maps what the run shows, if it can. The session's weights have their memory; session
  // and ranks are borrowed.
  WorkerWeights(const session::ModelSession& session, EngineRanks& ranks, const Welcome& welcome);

  // Whether every rank has mapped all of its part: then the run shall send no pieces.
  bool maps() const { return all_map_; }

  // Called by all ranks together with the run's messages. Each returns whether what is trained is new and whole, on
  // every rank. EnvironmentError: a rank's weights are not as they were when they were sent, or the message is not the
  // next one. They are not whole then. `read_from_run` is the first rank's.
  bool take(const Weights& piece, const weights::WeightReceiver::ReadBytes& read_from_run);
  bool take(const CopyWeights& message);
  bool take(const WeightChecksums& message);

 private:
  bool has_adapter() const { return &session_.trained() != &session_.base(); }
  weights::WeightStore& store(bool is_base) const { return is_base ? session_.base() : session_.trained(); }
  weights::ShownWeights& shown(bool is_base);
  void receive(const Weights& piece, const weights::WeightReceiver::ReadBytes& read);
  void pass_on(const Weights& piece, const weights::WeightReceiver::ReadBytes& read_from_run);
  bool have_come(bool is_base, uint64_t version, const std::function<void()>& finish);

  const session::ModelSession& session_;
  EngineRanks& ranks_;
  std::optional<weights::ShownWeights> trained_, base_;
  bool all_map_ = false;
  std::optional<weights::WeightReceiver> receiver_;  // while pieces come
};

}  // namespace tandem::sampling
