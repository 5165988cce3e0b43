// Samples as bytes, for the ranks of a run that sampled others. Every field goes, bit for bit, but the prompt, which
// each rank has of its own. Torch-free.
#pragma once

#include "base/wire.h"
#include "rl/sample.h"

namespace tandem::rl {

void write_sample(const Sample& sample, base::WireWriter& out);
// The sample with that prompt. EnvironmentError for bytes that write_sample() does not write.
Sample read_sample(base::WireReader& in, SharedPrompt prompt);

}  // namespace tandem::rl
