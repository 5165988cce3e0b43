// Takes new weights from the run, in a process that only samples: copies them from the memory that the run shows, or
// receives them in pieces. If several processes hold the model between them, each takes its part, and either all of
// them have the new weights or none has. A process that holds all of the model may copy them while it samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "rollout_worker/engine_ranks.h"
#include "rollout_worker/weight_copy.h"
#include "sampling/processes/messages.h"
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

  // Takes memory for a second copy of the trained weights, on an engine of one rank that maps them, so that it copies
  // ahead. Returns its bytes.
  int64_t allocate_second_copy();
  bool copies_ahead() const { return trained_ && trained_->has_second(); }
  // Begins to copy the trained weights into the second copy, in a thread: the session's stay as they are until their
  // checksums are taken. Throws EnvironmentError if this process does not copy ahead, or copies already.
  void copy_ahead(const sampling::CopyWeights& message);
  // Returns the version of a copy that is done, once. Throws what ended it.
  std::optional<uint64_t> copied() { return copy_.done(); }
  // This descriptor is readable when copied() has something, or will have in a moment.
  int descriptor() const { return copy_.descriptor(); }

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
  WeightCopy copy_;                                  // the last member: its thread ends before what it uses
};

}  // namespace tandem::rollout_worker
