// Tells how much memory this process may use: the machine's, or less where a control group limits it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace tandem::base {

struct MachineMemory {
  int64_t bytes = 0;       // 0: unknown
  std::string limited_by;  // "MemTotal" or "cgroup"
};

// Returns the bytes of a line of /proc/meminfo ("MemTotal", "MemAvailable"); nullopt if it is missing or 0.
std::optional<int64_t> meminfo_bytes(const std::string& name, const std::string& root = "");

// Reads /proc/meminfo, and the limits of this process's control group and of its parents (versions 1 and 2). `root` is
// put before all paths.
MachineMemory machine_memory(const std::string& root = "");

// Returns the bytes that belong to this process, with its share of mapped files and without shared memory (memfd):
// Pss_Anon and Pss_File of /proc/self/smaps_rollup. Returns 0 if the kernel does not report them.
int64_t unshared_process_bytes(const std::string& root = "");

// Follows unshared_process_bytes(). The kernel visits every page of the process for it, which takes milliseconds;
// resident pages it counts as they come and go (/proc/self/status). Those of no file are the process's own mostly, so
// what they have moved by is added to the last answer. This asks again where those of files have moved by a MiB, the
// others by 32, or where the kernel does not count.
class ProcessMemory {
 public:
  explicit ProcessMemory(std::string root = "") : root_(std::move(root)) {}
  int64_t unshared_bytes();
  // Returns how many times the kernel has been asked to visit the pages.
  int64_t num_asked() const { return num_asked_; }

 private:
  std::string root_;
  int64_t num_asked_ = 0;
  int64_t anonymous_bytes_ = 0, file_bytes_ = 0;  // counted when it last asked
  int64_t answer_bytes_ = 0;
};

}  // namespace tandem::base
