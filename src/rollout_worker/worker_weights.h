// Takes new weights from the run, in a process that only samples: copies them from the memory that the run shows, or
// receives them in pieces. If several processes hold the model between them, each takes its part, and either all of
// them have the new weights or none has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "rollout_worker/engine_ranks.h"
#include "sampling/messages.h"
#include "session/model_session.h"
#include "weights/shown_weights.h"
#include "weights/sync.h"

namespace tandem::rollout_worker {

class WorkerWeights {
 public:
  // All ranks create theirs together. Maps what the run shows, if it can. Memory for the session's weights is already
  // there; session and ranks are borrowed.
  WorkerWeights(const session::ModelSession& session, EngineRanks& ranks, const sampling::Welcome& welcome);

  // Returns whether every rank has mapped all of its part: then the run need not send pieces.
  bool maps() const { return all_map_; }

  // All ranks call these together with the run's messages. Each returns whether the trained weights are new and whole,
  // on every rank. Throws EnvironmentError if a rank's weights differ from what was sent, or if the message is not the
  // next one; the weights are then not whole. Only the first rank has the piece's `bytes`.
  bool take(const sampling::Weights& piece, std::span<const std::byte> bytes);
  bool take(const sampling::CopyWeights& message);
  bool take(const sampling::WeightChecksums& message);

 private:
  bool has_adapter() const { return &session_.trained() != &session_.base(); }
  weights::WeightStore& store(bool is_base) const { return is_base ? session_.base() : session_.trained(); }
  weights::ShownWeights& shown(bool is_base);
  void take_own(const sampling::Weights& piece, std::span<const std::byte> bytes);
  bool have_come(bool is_base, uint64_t version, const std::function<void()>& finish);

  const session::ModelSession& session_;
  EngineRanks& ranks_;
  std::optional<weights::ShownWeights> trained_, base_;
  bool all_map_ = false;
  std::optional<weights::WeightReceiver> receiver_;  // set while pieces come
};

}  // namespace tandem::rollout_worker
