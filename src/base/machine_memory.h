// How much memory this process may use: the machine's, or less where a control group limits it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tandem::base {

struct MachineMemory {
  int64_t bytes = 0;       // 0: not known
  std::string limited_by;  // "MemTotal" or "cgroup"
};

// A line of /proc/meminfo ("MemTotal", "MemAvailable"); nothing where it is not there or 0.
std::optional<int64_t> meminfo_bytes(const std::string& name, const std::string& root = "");

// Reads /proc/meminfo, and the limits of this process's control group and of those above it (version 1 and 2).
// `root` stands before all paths.
MachineMemory machine_memory(const std::string& root = "");

// What this process has of its own, code and data of files by its share, memory shared on purpose (memfd) left out:
// Pss_Anon and Pss_File of /proc/self/smaps_rollup. 0 where the kernel does not say.
int64_t unshared_process_bytes(const std::string& root = "");

}  // namespace tandem::base
