// Finds the processes that a launcher has started, and those below them.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/files.h"
#include "tandem/error.h"
#include "tests/cli/workers/process_sockets.h"

namespace tandem::cli {

// Returns a file of /proc/PID; "" if the process is gone.
inline std::string proc_file(pid_t pid, const char* name) {
  try {
    return base::read_file(fmt::format("/proc/{}/{}", pid, name));
  } catch (const UserError&) {
    return "";
  }
}

inline bool is_running(pid_t pid) {
  const std::string stat = proc_file(pid, "stat");
  return !stat.empty() && stat.find(") Z ") == std::string::npos;
}

// Returns the processes by rank, once there are so many.
inline std::map<int, pid_t> processes_of(pid_t launcher, size_t count) {
  const std::string parent = fmt::format("\nPPid:\t{}\n", launcher), key = std::string("\0RANK=", 6);
  std::map<int, pid_t> found;
  for (int tries = 0; tries < 1000 && found.size() < count; ++tries, usleep(10'000)) {
    for (const std::string& name : base::list_directory("/proc")) {
      const pid_t pid = std::atoi(name.c_str());
      if (pid == 0 || proc_file(pid, "status").find(parent) == std::string::npos) continue;
      const std::string environment = '\0' + proc_file(pid, "environ");
      if (const size_t at = environment.find(key); at != std::string::npos)
        found[std::atoi(environment.c_str() + at + key.size())] = pid;
    }
  }
  return found;
}

// Counts processes below this one that run the user's code: `grader` and `generator` of tandem_worker.
inline int64_t num_graders(pid_t root) {
  const std::vector<std::string> tree = process_tree(root);
  return std::ranges::count_if(tree, [](const std::string& pid) {
    return proc_file(std::stoi(pid), "cmdline").find("tandem_worker.g") != std::string::npos;
  });
}

}  // namespace tandem::cli
