// The words for what a machine that lacks layers of the sandbox leaves open. docs/REWARDS.md has it as a table.
#pragma once

#include <string>
#include <vector>

namespace tandem::worker {

// Returns a list of what reward code may do, which is never empty. `missing` has the layers as
// python/tandem_worker/sandbox/sandbox.py names them, each with the kernel's reason.
std::string what_is_open(const std::vector<std::string>& missing);

}  // namespace tandem::worker
