// Estimates the space that a run will take on disk, so that a disk that is too small is refused before the run and not
// in it.
#pragma once

#include <cstdint>
#include <string>

#include "config/train_config.h"
#include "model/config.h"
#include "session/prompt_set.h"

namespace tandem::run {

// An optimizer step's record and its TensorBoard scalars take so much in tiny runs.
constexpr int64_t kLogBytesPerStep = int64_t{4} << 10;

struct RunSpace {
  int64_t exports = 0;               // bytes of hf/: every export stays
  int64_t checkpoints = 0;           // bytes of checkpoints/: those that are kept, and the one that is being written
  int64_t samples = 0;               // bytes of samples/
  int64_t logs = 0;                  // bytes of metrics, TensorBoard, the memory timeline
  bool has_several_exports = false;  // so a longer --save-interval lowers their bytes
  bool keeps_several = false;        // checkpoints, of which a lower --keep-latest would keep fewer

  int64_t bytes() const { return exports + checkpoints + samples + logs; }
  // Returns " (hf/ 31 MiB, which a longer --save-interval lowers; checkpoints/ 24: --keep-latest; ...)", with the flags
  // that would lower something.
  std::string what_for() const;
};

// Returns about what the checkpoints of a whole run take, for the whole model: every export, and one checkpoint more
// than are kept, since the oldest is removed when the newest is there. Where a run goes on that has `num_there`
// already, it is what they take in addition. `copied_bytes` counts tokenizer and configuration.
// `reference_element_bytes` is what saved_reference_element_bytes() says, or 0.
RunSpace checkpoint_space(const model::ModelConfig& model, int64_t copied_bytes, int64_t num_exports,
                          int64_t num_checkpoints, int64_t keep_latest, int64_t reference_element_bytes,
                          int64_t num_there = 0);

// Returns how many checkpoints are in `save` already that a run keeps which goes on there after `begin` steps; 0 for a
// run that begins in `save`.
int64_t num_checkpoints_there(const config::CheckpointOptions& options, const std::string& save, int64_t begin);
// Returns how many best weights (--save-best) are written at most before a checkpoint lets older ones go.
int64_t num_further_bests(const config::CheckpointOptions& options, const config::OutputOptions& output);

// Returns the bytes of one weight of the KL reference in a checkpoint: 0 where it is never renewed, 4 where it is an
// average, else those of the model's dtype.
int64_t saved_reference_element_bytes(const config::LossOptions& loss, model::Dtype dtype);

// Adds what `num_rollouts` rollouts log and dump. A completion counts as half of the longest: few are longer for long,
// and a run that would fit is not to be refused.
void add_records(RunSpace& space, const config::TrainConfig& config, const session::PromptSet& prompts,
                 int64_t num_rollouts);

}  // namespace tandem::run
