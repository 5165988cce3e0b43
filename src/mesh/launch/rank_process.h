// One rank in its launcher's view: a child process in a process group of its own. No torch.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "mesh/launch/launcher_link.h"
#include "mesh/network.h"

namespace tandem::mesh {

class RankProcess {
 public:
  // Starts `command` ([0] is its file, and `shown_as`, unless it is "", what the process takes for that) with
  // `environment` ("NAME=value" each, and nothing else). With `output_is_kept` its output goes through a pipe to us;
  // else it has our terminal. `store` stays open in it (-1: none), and TANDEM_LAUNCHER_FD is its end of link(). It dies
  // when we do. Throws EnvironmentError.
  RankProcess(const std::vector<std::string>& command, const std::string& shown_as,
              std::vector<std::string> environment, bool output_is_kept, int store);
  // Kills the rank and the remaining processes of its group.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Returns the status of waitpid(); nothing while it runs.
  std::optional<int> status() const { return status_; }
  // Checks whether it has ended. The remaining processes of its group end with it.
  void look();
  // Sends the signal to all of its group; does nothing if it has ended.
  void signal(int signal) const;

  RankLink& link() { return link_; }

  // Returns -1 if it has our terminal, or has closed its end.
  int output() const { return output_.get(); }
  // Reads the output that is there. The last 64 KiB are kept.
  void read_output();
  const std::string& last_output() const { return last_output_; }

 private:
  pid_t pid_ = -1;
  std::optional<int> status_;
  RankLink link_;
  OwnedDescriptor output_;
  std::string last_output_;
};

}  // namespace tandem::mesh
