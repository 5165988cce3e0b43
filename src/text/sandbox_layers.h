// What a machine that lacks layers of the sandbox leaves open, in words. docs/REWARDS.md has it as a table.
#pragma once

#include <string>
#include <vector>

namespace tandem::text {

// `missing`: the layers as python/tandem_worker/sandbox.py names them, each with the kernel's reason. A list of what
// reward code may do; never empty.
std::string what_is_open(const std::vector<std::string>& missing);

}  // namespace tandem::text
