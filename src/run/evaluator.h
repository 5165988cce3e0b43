// Decides when the evaluations of a training run are due, runs them, and writes their results.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "evaluation/evaluation.h"
#include "evaluation/rewards.h"
#include "run/best_weights.h"
#include "run/run_log.h"
#include "run/train_inputs.h"
#include "sampling/rollout_phase.h"

namespace tandem::run {

class Evaluator {
 public:
  // All are borrowed. `is_due` tells that a signal ended the evaluation after the rollout that the run begins with.
  // `judge` is called in the rollout phase, and may leave it meanwhile.
  Evaluator(const TrainInputs& inputs, sampling::RolloutPhase& phase, const evaluation::Rewards& rewards,
            BestWeights& best, RunLog& log, bool is_due, evaluation::Evaluation::Judge judge)
      : inputs_(inputs),
        phase_(phase),
        rewards_(rewards),
        best_(best),
        log_(log),
        is_due_(is_due),
        judge_(std::move(judge)) {}

  // Returns whether an evaluation is due before the first rollout of this process, or after any later one, when
  // `rollout_id` rollouts are finished.
  bool is_due_at_start(int64_t rollout_id) const;
  bool is_due_after(int64_t rollout_id) const;
  // Writes a record eval/*, a line and a file of samples for each data set, and the weights if they are the best so
  // far. Does nothing if the run has no evaluation. If the run is asked to stop, nothing is written and the evaluation
  // stays due.
  void run(int64_t rollout_id);

  // Returns whether a signal ended the last one.
  bool is_due() const { return is_due_; }

 private:
  std::optional<sampling::CustomGeneration> generation() const;
  void warn_of_pass_doubt(const evaluation::Evaluation::Result& result);

  const TrainInputs& inputs_;
  sampling::RolloutPhase& phase_;
  const evaluation::Rewards& rewards_;
  BestWeights& best_;
  RunLog& log_;
  bool is_due_;
  evaluation::Evaluation::Judge judge_;
  bool doubts_pass_ = true;  // false once a sample of this process has passed, or the doubt was reported
};

}  // namespace tandem::run
