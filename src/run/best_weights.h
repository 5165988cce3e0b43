// The weights that did best in evaluations (--save-best): RUN/hf/best, beside the exports of --save-interval. The
// number to beat is part of a checkpoint, and so is the step that has it.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/resume.h"
#include "checkpoint/run_directory.h"
#include "mesh/mesh.h"
#include "report/report.h"
#include "run/run_log.h"
#include "session/model_session.h"

namespace tandem::run {

class BestWeights {
 public:
  // `metric`: of evaluations; "": nothing is kept. `judged_by`: of pass@k, when a sample passes. All but the texts and
  // `start` are borrowed. Where the best weights of the checkpoint are not in this run directory, because the run came
  // from another one, or samples passed by another rule then, the search begins again. Every rank of the mesh has one;
  // the first replica writes.
  BestWeights(std::string metric, std::string judged_by, const session::ModelSession& session,
              const checkpoint::RunDirectory& directory, const mesh::Mesh& mesh, RunLog& log,
              const checkpoint::RunState& start);

  // After an evaluation of the weights of `step`. Larger is better, and of equal values the first. What the metric was
  // before training is a number to beat, whose weights are --hf-checkpoint and not written again.
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
