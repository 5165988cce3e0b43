// Keeps the weights that did best in evaluations (--save-best) in RUN/hf/best, next to the exports of --save-interval.
// The number to beat and its step are part of a checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/run_directory.h"
#include "checkpoint/run_state.h"
#include "evaluation/evaluation.h"
#include "mesh/mesh.h"
#include "report/report.h"
#include "run/run_log.h"
#include "session/model_session.h"

namespace tandem::run {

class BestWeights {
 public:
  // `metric` is one of the evaluations; its name "" keeps nothing. All but it and `start` are borrowed. The search
  // begins again if the best weights of the checkpoint are not in this run directory, because the run came from another
  // one, or if another metric was followed, something else was sampled, or samples were judged otherwise. A warning
  // says so. Every rank of the mesh has one; the first replica writes.
  BestWeights(evaluation::Evaluation::RewardMetric metric, const session::ModelSession& session,
              const checkpoint::RunDirectory& directory, const mesh::Mesh& mesh, RunLog& log,
              const checkpoint::RunState& start);

  // Call it after an evaluation of the weights of `step`. A larger value is better; among equal values the first
  // counts. The metric's value before training is a number to beat too, but its weights are --hf-checkpoint and are not
  // written again.
  void observe(int64_t step, const report::Metrics& metrics);

  void save(checkpoint::RunState& state) const { state.best = best_; }

 private:
  bool has_weights() const;
  // Forgets the number to beat, and warns of it.
  void begin_again(const std::string& why);

  const evaluation::Evaluation::RewardMetric metric_;
  const session::ModelSession& session_;
  const checkpoint::RunDirectory& directory_;
  const mesh::Mesh& mesh_;
  RunLog& log_;
  std::optional<checkpoint::BestEvaluation> best_;
};

}  // namespace tandem::run
