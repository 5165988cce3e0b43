// Converts a training run to and from the contents of a checkpoint. Randomness is a function of seeds and counters, so
// its state is the step; groups wait for training between two steps only with --partial-rollout.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
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

// Records the best evaluation of --save-best so far.
struct BestEvaluation {
  std::string metric;
  int64_t step = 0;  // finished rollouts; the weights are RunDirectory::best(step), except before training
  double value = 0.0;
  std::string judged_by;  // rule of pass@k: config::RewardOptions::pass_text()
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
  int64_t reference_step = 0;  // finished rollouts of the policy that the KL reference is a copy of; 0: it is no copy
  rl::PromptCursor cursor;
  std::optional<BestEvaluation> best;
  std::map<std::string, int64_t> file_bytes;         // sizes of the run's growing files: metrics.jsonl, tensorboard/...
  std::map<std::string, std::string> result_inputs;  // flags and input files (their checksums) that results depend on

  base::Json to_json() const;
  // Throws UserError "FILE: what" for anything that to_json() does not write.
  static RunState from_json(const base::Json& json, const std::string& file);
};

// Returns the large part of the state: masters and moments of each HF tensor, "master.model.norm.weight", "exp_avg...",
// "exp_avg_sq...", as the boxes that this rank holds, with any number of data and tensor ranks. Tensors that all tensor
// ranks hold are saved by the first of them, tensor_rank 0. The result is live: it is valid until the next optimizer
// step. The weights themselves are the masters, rounded.
std::vector<SavedTensor> optimizer_tensors(const trainer::Trainer& trainer, int tensor_rank = 0);

// Returns the KL reference, if it is a copy of an earlier policy: "reference.model.norm.weight"..., in the store's
// dtype. Every data rank holds the same: one replica saves it, each of its tensor ranks its boxes. The result is live
// as well: it is valid until the reference changes.
std::vector<SavedTensor> reference_tensors(const weights::WeightStore& reference, int tensor_rank = 0);
// Fills a store that has memory with the checkpoint's reference. Throws UserError if the checkpoint has none, or one of
// another dtype.
void restore_reference(const Checkpoint& checkpoint, weights::WeightStore& reference);

// Restores state and optimizer, whichever number of ranks saved them; the store then has the checkpoint's version.
void restore(const Checkpoint& checkpoint, const RunState& state, trainer::Trainer& trainer,
             weights::WeightStore& store);

// Holds everything that the results of a run depend on. A resumed run compares it with the values that its checkpoint
// remembers.
struct ResultInputs {
  std::map<std::string, std::string> flags;  // RunMode::result_options
  std::string kernels;                       // device::Ops::name()
  const trainer::Schedule& schedule;         // compared by the end of the learning rate's decay
  std::string model_directory;               // compared by checksums of its configuration and tokenizer
  bool has_frozen_weights = false;           // compare its weights too, since the checkpoint lacks them
  std::vector<std::string> prompt_data;      // compared by checksums of these files
  std::vector<int32_t> text_prefix;          // tokens that --add-special-tokens puts before texts; empty: none
  std::vector<std::string> custom_rm_paths;  // FILE.py:function each, compared by checksums of the files
  std::string group_filter = {};             // name, or FILE.py:function; "": none
  std::string generate_function = {};        // FILE.py:function, or ""
  // Set where groups are in flight between two rollouts, whose samples depend on how many, and on whether they are
  // sampled in phases or while the run trains.
  std::optional<int64_t> groups_in_flight = {};
  bool samples_while_training = false;
  // The definitions, by name, that this version computes otherwise than earlier ones did under the same flags, if the
  // run depends on them: a checkpoint of an earlier version lacks the entry.
  std::map<std::string, std::string> definitions = {};
};
std::map<std::string, std::string> result_inputs(ResultInputs inputs);

// Where the data of the next step come from.
struct DataPosition {
  rl::PromptCursor cursor;
  // With --partial-rollout, on rank 0: the groups that have begun and are not trained on (groups/in_flight.h).
  std::shared_ptr<const std::string> in_flight = nullptr;
};
// Returns the groups in flight as a tensor of bytes, which borrows them.
SavedTensor in_flight_tensor(const std::string& in_flight);
// Returns the groups in flight of a checkpoint, or nullopt if its run had no --partial-rollout.
std::optional<std::string> in_flight_of(const Checkpoint& checkpoint);

RunState read_state(const Checkpoint& checkpoint);

// Checks that a run with these inputs and this many records of data may resume from the checkpoint. Throws UserError
// with each flag or input that differs and both its values; with `allow_changes` that is only a warning. A flag that
// the checkpoint does not name came with a later version, and its value was that of `values_where_absent` (RunMode's).
void check_can_resume(const Checkpoint& checkpoint, const std::map<std::string, std::string>& result_inputs,
                      const std::map<std::string, std::string>& values_where_absent, bool allow_changes,
                      int64_t num_records);

}  // namespace tandem::checkpoint
