// The small part of a checkpoint's state: counts, the place in the data, and what the results depend on. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/json.h"
#include "checkpoint/checkpoints.h"
#include "data/prompt_order.h"
#include "trainer/optimizer_progress.h"

namespace tandem::checkpoint {

// Records the best evaluation of --save-best so far.
struct BestEvaluation {
  std::string metric;
  int64_t step = 0;  // finished rollouts; the weights are RunDirectory::best(step), except before training
  double value = 0.0;
  std::string judged_by;  // rule of pass@k: config::RewardOptions::pass_text()
  std::string asked;      // what was sampled and how: evaluation::Evaluation::RewardMetric; "": not recorded
};

// Holds the small part of the state: state.json.
struct RunState {
  int64_t step = 0;  // finished rollouts
  trainer::OptimizerProgress optimizer;
  int64_t skipped_in_a_row = 0;   // optimizer steps
  int64_t failed_in_a_row = 0;    // rollouts in which every grading failed, or a group filter failed on every group
  int64_t ungraded_in_a_row = 0;  // rollouts in which every grading failed
  std::optional<int64_t> rewards_differed_until;  // rl::LearningHealth::differed_until()
  bool evaluation_due = false;                    // a signal ended the evaluation after this step
  uint64_t weight_version = 0;
  int64_t reference_step = 0;   // finished rollouts of the policy that the KL reference is a copy of; 0: it is no copy
  std::string advantage_state;  // JSON of what --custom-advantage-path keeps from rollout to rollout; "": nothing
  data::PromptCursor cursor;
  std::optional<BestEvaluation> best;
  std::map<std::string, int64_t> file_bytes;         // sizes of the run's growing files: metrics.jsonl, tensorboard/...
  std::map<std::string, std::string> result_inputs;  // flags and input files (their checksums) that results depend on

  base::Json to_json() const;
  // Throws UserError "FILE: what" for anything that to_json() does not write.
  static RunState from_json(const base::Json& json, const std::string& file);
};

RunState read_state(const Checkpoint& checkpoint);

}  // namespace tandem::checkpoint
