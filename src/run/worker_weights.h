// New weights, as a process that only samples takes them from the run: it copies them from the memory that the run
// shows, or receives them in pieces, and answers when they are whole.
#pragma once

#include <optional>

#include "mesh/channel.h"
#include "run/model_session.h"
#include "run/worker_messages.h"
#include "weights/shown_weights.h"
#include "weights/sync.h"

namespace tandem::run {

class WorkerWeights {
 public:
  // Maps what the run shows, if it can. The session's weights have their memory; session and channel are borrowed.
  WorkerWeights(const ModelSession& session, mesh::Channel& run, const Welcome& welcome);

  // Whether all is mapped: then the run shall send no pieces.
  bool maps() const { return trained_.has_value() && (base_.has_value() || !has_adapter()); }

  // Each returns whether the weights are new and whole, which it has then told the run. EnvironmentError: they are not
  // as they were when they were sent, or the message is not the next one. They are not whole then.
  bool take(const Weights& piece);
  bool take(const CopyWeights& message);
  bool take(const WeightChecksums& message);

 private:
  bool has_adapter() const { return &session_.trained() != &session_.base(); }
  weights::ShownWeights& shown(bool is_base);
  bool have_come(bool is_base);

  const ModelSession& session_;
  mesh::Channel& run_;
  std::optional<weights::ShownWeights> trained_, base_;
  std::optional<weights::WeightReceiver> receiver_;  // while pieces come
};

}  // namespace tandem::run
