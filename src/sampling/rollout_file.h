// The file of --load-debug-rollout-data: a rollout as --save-debug-rollout-data or RUN/fault has it, read back to be
// trained on again. It may have been written by another run, a script or an editor, so all of it is checked.
#pragma once

#include <cstdint>
#include <string>

#include "sampling/rollout.h"

namespace tandem::sampling {

// Bounds that a rollout read from a file must keep, so that this run can train on it.
struct RolloutBounds {
  int64_t num_samples = 0;
  int64_t vocab = 0;              // every token id is below it
  int64_t context_tokens = 0;     // longest sample, prompt and response
  int64_t further_sequences = 0;  // the most of a sample (rl/sample.h)
};

// Reads the rollout. The samples of a group share one prompt again, with the text and label of its first line. Throws
// UserError "FILE:LINE:COLUMN: what is wrong, remedy" for: no JSON, a key that is missing or of another type, a token
// that the model does not have, lists that differ in length, a number that is not finite, a mask of other numbers than
// 0 and 1, an empty prompt or response, a sample that is too long or of too many sequences, samples of a group whose
// prompts differ, an id twice, another number of samples.
Rollout read_rollout(const std::string& path, const RolloutBounds& bounds);

}  // namespace tandem::sampling
