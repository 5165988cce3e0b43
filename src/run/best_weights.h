// Keeps the weights that did best in evaluations (--save-best) in RUN/hf/best, next to the exports of --save-interval.
// The number to beat and its step are part of a checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/run_directory.h"
#include "checkpoint/run_state.h"
#include "mesh/mesh.h"
#include "report/report.h"
#include "run/run_log.h"
#include "session/model_session.h"

namespace tandem::run {

class BestWeights {
 public:
  // `metric` names a metric of the evaluations; "" keeps nothing. `judged_by` says when a sample passes for pass@k. All
  // but the texts and `start` are borrowed. The search begins again if the best weights of the checkpoint are not in
  // this run directory, because the run came from another one, or if samples passed by another rule then. Every rank of
  // the mesh has one; the first replica writes.
  BestWeights(std::string metric, std::string judged_by, const session::ModelSession& session,
              const checkpoint::RunDirectory& directory, const mesh::Mesh& mesh, RunLog& log,
              const checkpoint::RunState& start);

  // Call it after an evaluation of the weights of `step`. A larger value is better; among equal values the first
  // counts. The metric's value before training is a number to beat too, but its weights are --hf-checkpoint and are not
  // written again.
  void observe(int64_t step, const report::Metrics& metrics);

  void save(checkpoint::RunState& state) const { state.best = best_; }

 private:
  const std::string metric_, judged_by_;
  const session::ModelSession& session_;
  const checkpoint::RunDirectory& directory_;
  const mesh::Mesh& mesh_;
  RunLog& log_;
  std::optional<checkpoint::BestEvaluation> best_;
};

}  // namespace tandem::run
