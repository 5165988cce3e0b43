// What of a training run goes into a checkpoint, and how it comes back. Randomness is a function of seeds and counters,
// so its state is the step; a step boundary of the colocated loop has no groups that wait for training.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/checkpoints.h"
#include "config/run_mode.h"
#include "rl/prompt_order.h"
#include "trainer/trainer.h"
#include "weights/store.h"

namespace tandem::checkpoint {

// The best evaluation of --save-best so far.
struct BestEvaluation {
  std::string metric;
  int64_t step = 0;  // finished rollouts; their weights are RunDirectory::best(step), but for those before training
  double value = 0.0;
  std::string judged_by;  // of pass@k: config::RewardOptions::pass_text()
};

// The small part: state.json.
struct RunState {
  int64_t step = 0;  // finished rollouts
  trainer::OptimizerProgress optimizer;
  int64_t skipped_in_a_row = 0;   // optimizer steps
  int64_t failed_in_a_row = 0;    // rollouts of which every grading failed, or a group filter on every group
  int64_t ungraded_in_a_row = 0;  // rollouts of which every grading failed
  std::optional<int64_t> rewards_differed_until;  // rl::LearningHealth::differed_until()
  bool evaluation_due = false;                    // a signal ended the evaluation behind this step
  uint64_t weight_version = 0;
  int64_t reference_step = 0;  // finished rollouts of the policy that the KL reference is a copy of; 0: of none
  rl::PromptCursor cursor;
  std::optional<BestEvaluation> best;
  std::map<std::string, int64_t> file_bytes;         // of the run's growing files: metrics.jsonl, tensorboard/...
  std::map<std::string, std::string> result_inputs;  // flags and input files (their checksums) that results depend on

  base::Json to_json() const;
  // UserError "FILE: what" for anything else than to_json() gives.
  static RunState from_json(const base::Json& json, const std::string& file);
};

// The large part: masters and moments of each HF tensor, "master.model.norm.weight", "exp_avg...", "exp_avg_sq...": the
// boxes of it that this rank holds, with any number of data and tensor ranks. What all tensor ranks hold is saved by
// the first of them, tensor_rank 0.
// Live: valid until the next optimizer step. The weights themselves are the masters, rounded.
std::vector<SavedTensor> optimizer_tensors(const trainer::Trainer& trainer, int tensor_rank = 0);

// The KL reference, where it is a copy of an earlier policy: "reference.model.norm.weight"..., in the store's dtype.
// Every data rank holds the same: one replica saves it, each of its tensor ranks its boxes.
// Live as well: valid until the reference is another.
std::vector<SavedTensor> reference_tensors(const weights::WeightStore& reference, int tensor_rank = 0);
// Fills a store that has memory with them. UserError where the checkpoint has none, or of another dtype.
void restore_reference(const Checkpoint& checkpoint, weights::WeightStore& reference);

// Puts state and optimizer back, whichever number of ranks saved them; the store has the checkpoint's version then.
void restore(const Checkpoint& checkpoint, const RunState& state, trainer::Trainer& trainer,
             weights::WeightStore& store);

// Everything that the results of a run depend on. A resumed run compares it with what its checkpoint remembers.
struct ResultInputs {
  std::map<std::string, std::string> flags;  // RunMode::result_options
  std::string kernels;                       // device::Ops::name()
  const trainer::Schedule& schedule;         // of which: where the learning rate's decay ends
  std::string model_directory;               // checksums of its configuration and tokenizer
  bool has_frozen_weights = false;           // and of its weights, which a checkpoint then does not hold
  std::vector<std::string> prompt_data;      // and of these files
  std::vector<int32_t> text_prefix;          // what --add-special-tokens has put before texts; empty: nothing
  std::vector<std::string> custom_rm_paths;  // and of these, FILE.py:function
  std::string group_filter = {};             // a name, or FILE.py:function; "": none
  std::string generate_function = {};        // FILE.py:function, or ""
  // What this version computes otherwise than earlier ones did under the same flags, by name, where the run depends on
  // it: a checkpoint of an earlier one lacks the entry.
  std::map<std::string, std::string> definitions = {};
};
std::map<std::string, std::string> result_inputs(ResultInputs inputs);

RunState read_state(const Checkpoint& checkpoint);

// Whether a run with these numbers and so many records of data may go on from it: UserError naming each flag or input
// that differs, with both values, unless `allow_changes`; then it is a warning. A flag that the checkpoint does not
// name came with a later version, and its value was that of `values_where_absent` (RunMode's).
void check_can_resume(const Checkpoint& checkpoint, const std::map<std::string, std::string>& result_inputs,
                      const std::map<std::string, std::string>& values_where_absent, bool allow_changes,
                      int64_t num_records);

}  // namespace tandem::checkpoint
