// Evaluations of a training run: when they are due, and what is written of them.
#pragma once

#include <cstdint>
#include <optional>

#include "run/best_weights.h"
#include "run/run_log.h"
#include "run/train_inputs.h"
#include "sampling/evaluation.h"
#include "sampling/rewards.h"
#include "sampling/rollout_phase.h"

namespace tandem::run {

class Evaluator {
 public:
  // All borrowed. `is_due`: a signal ended the evaluation behind the rollout that the run begins with.
  Evaluator(const TrainInputs& inputs, sampling::RolloutPhase& phase, const sampling::Rewards& rewards,
            BestWeights& best, RunLog& log, bool is_due)
      : inputs_(inputs), phase_(phase), rewards_(rewards), best_(best), log_(log), is_due_(is_due) {}

  // Before the first rollout of this process, and behind each: `rollout_id` of them are finished.
  bool is_due_at_start(int64_t rollout_id) const;
  bool is_due_after(int64_t rollout_id) const;
  // A record eval/*, a line and a file of samples for each data set, and the weights where they are the best so far;
  // nothing where the run has none, or is asked to stop: then the evaluation is due still.
  void run(int64_t rollout_id);

  // Whether a signal ended the last one.
  bool is_due() const { return is_due_; }

 private:
  std::optional<sampling::CustomGeneration> generation() const;
  void warn_of_pass_doubt(const sampling::Evaluation::Result& result);

  const TrainInputs& inputs_;
  sampling::RolloutPhase& phase_;
  const sampling::Rewards& rewards_;
  BestWeights& best_;
  RunLog& log_;
  bool is_due_;
  bool doubts_pass_ = true;  // no evaluation of this process has had a sample that passed, or it was said
};

}  // namespace tandem::run
