// The socket between a launcher and a rank that it started. The rank says twice a second that its process runs, whatever
// it is busy with, so that one which is frozen is missed; rank 0 hears through it how workers (processes that only
// sample) have ended. A rank that another launcher started has none. No torch.
#pragma once

#include <optional>
#include <string>
#include <thread>

#include "base/running_time.h"
#include "mesh/network.h"

namespace tandem::mesh {

struct WorkerEnd {
  int code = 0;     // as LaunchEnd has it
  std::string how;  // "rank 2 of 3 exited with code 2: --device cuda:9: ..."
};

// The launcher's end.
class RankLink {
 public:
  // Makes the socket. EnvironmentError: no descriptor is left.
  RankLink();
  // For the rank alone (LaunchVariables::launcher_descriptor); ours until it has it.
  int theirs() const { return theirs_.get(); }
  void close_theirs() { theirs_.close(); }

  // Of each worker once, to rank 0. Does not wait, and a rank that is gone misses nothing.
  void tell(const WorkerEnd& end) const;
  // No worker is left.
  void close() const;
  // Whether the rank has been silent for so long, or for as long as a rank that is well may be: while its program is
  // loaded, and between two beats. To be asked as often as base::RunningTime wants.
  bool is_silent_for(double seconds);

 private:
  OwnedDescriptor ours_, theirs_;
  base::RunningTime silence_;
  bool has_beaten_ = false;
};

// The rank's end of it, for what rank 0 hears. The descriptor stays open as long as the process runs.
class StartedWorkers {
 public:
  // Nothing: nobody tells.
  explicit StartedWorkers(std::optional<int> launcher_descriptor) : descriptor_(launcher_descriptor) {}

  // Whether each of them has ended; nothing where nobody tells. EnvironmentError: the descriptor is no such socket.
  std::optional<bool> have_all_ended();
  // The first that failed, else the first that ended.
  const std::optional<WorkerEnd>& first_end() const { return first_end_; }

 private:
  std::optional<int> descriptor_;
  bool have_ended_ = false;
  std::optional<WorkerEnd> first_end_;
};

// Says from a thread of its own that this process runs, as long as it lives. Programs that this process starts do not
// get the descriptor.
class Heartbeat {
 public:
  // Nothing: nobody listens.
  explicit Heartbeat(std::optional<int> launcher_descriptor);

 private:
  std::jthread thread_;
};

}  // namespace tandem::mesh
