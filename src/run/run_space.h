// The room that a run will take on disk, so that a disk that is too small is refused before the run and not in it.
#pragma once

#include <cstdint>
#include <string>

#include "config/train_config.h"
#include "model/config.h"
#include "session/prompt_set.h"

namespace tandem::run {

// Of tiny runs: an optimizer step's record and its TensorBoard scalars.
constexpr int64_t kLogBytesPerStep = int64_t{4} << 10;

struct RunSpace {
  int64_t exports = 0;      // hf/: every one stays
  int64_t checkpoints = 0;  // checkpoints/: those that are kept, and the one that is being written
  int64_t samples = 0;      // samples/
  int64_t logs = 0;         // metrics, TensorBoard, the memory timeline

  int64_t bytes() const { return exports + checkpoints + samples + logs; }
  // " (hf/ 31 MiB, checkpoints/ 24 MiB, ...: what lowers them)".
  std::string what_for() const;
};

// What the checkpoints of a whole run, of the whole model, take, about: every export, and one more of the others than
// are kept, since the oldest goes when the newest is there. `copied_bytes`: of tokenizer and configuration.
// `holds_reference`: a checkpoint holds the weights of the KL reference too.
RunSpace checkpoint_space(const model::ModelConfig& model, int64_t copied_bytes, int64_t num_exports,
                          int64_t num_checkpoints, int64_t keep_latest, bool holds_reference);

// Adds what `num_rollouts` rollouts log and dump. Of a completion half of the longest is counted: few are longer for
// long, and a run that would fit is not to be refused.
void add_records(RunSpace& space, const config::TrainConfig& config, const session::PromptSet& prompts,
                 int64_t num_rollouts);

}  // namespace tandem::run
