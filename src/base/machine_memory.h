// How much memory this process may use: the machine's, or less where a control group limits it.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::base {

struct MachineMemory {
  int64_t bytes = 0;       // 0: not known
  std::string limited_by;  // "MemTotal" or "cgroup"
};

// Reads /proc/meminfo, and the limits of this process's control group and of those above it (version 1 and 2).
// `root` stands before all paths.
MachineMemory machine_memory(const std::string& root = "");

}  // namespace tandem::base
