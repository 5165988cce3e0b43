// Splits an optimizer step's samples into micro-batches under a token budget. A group's prompt is counted once in each
// micro-batch that holds samples of the group, because the trainer's forward runs it once there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rl/sample.h"

namespace tandem::rl {

struct MicroBatch {
  std::vector<int64_t> samples;  // indices into the step's samples; those of a group are adjacent
  int64_t num_tokens = 0;        // prompt of each group once, and all completions
};

// Holds the parameters of a split. The number of ranks that compute the step is none of them.
struct Split {
  int64_t max_tokens = 0;  // token budget, > 0
  int64_t multiple = 1;    // multiple that the number of micro-batches is rounded to, > 0
};

// It is deterministic: a function of the samples' order, lengths and the split. Adjacent samples that share_prompt()
// are one group. A group goes, in order, into the first micro-batch with room for all of it; one that is longer than
// the budget is split into runs, each as long as the budget, and each goes into the first micro-batch with room for it
// that has none of that group. A single sample beyond the budget gets a micro-batch of its own.
//
// With a multiple above 1 there are at most as many micro-batches as the budget needs, rounded up to the multiple, and
// the budget is the smallest that gives no more: so they are near in size, and of D ranks that take turns each has as
// much to do as the others if D divides the multiple. There are fewer if there are too few samples. Throws BugError
// when the budget or the multiple is not positive.
std::vector<MicroBatch> split_into_micro_batches(std::span<const Sample* const> samples, const Split& split);

}  // namespace tandem::rl
