// Encodes samples as bytes, for ranks of a run that did not sample them. Every field is kept, bit for bit, except the
// prompt, which each rank has already. Torch-free.
#pragma once

#include "base/wire.h"
#include "rl/sample.h"

namespace tandem::rl {

void write_sample(const Sample& sample, base::WireWriter& out);
// Returns the sample with that prompt. Throws EnvironmentError for bytes that write_sample() does not write.
Sample read_sample(base::WireReader& in, SharedPrompt prompt);

}  // namespace tandem::rl
