// Connects a launcher and a rank that it started by a socket. The rank sends twice a second that its process runs,
// whatever it is busy with, so that a frozen one is noticed; rank 0 learns through it how rollout workers have ended. A
// rank that another launcher started has none. No torch.
#pragma once

#include <optional>
#include <string>
#include <thread>

#include "base/running_time.h"
#include "mesh/network.h"

namespace tandem::mesh {

struct WorkerEnd {
  int code = 0;     // the code of LaunchEnd
  std::string how;  // "rank 2 of 3 exited with code 2: --device cuda:9: ..."
};

// The launcher's end.
class RankLink {
 public:
  // Makes the socket. Throws EnvironmentError if no descriptor is left.
  RankLink();
  // Returns the rank's descriptor (LaunchVariables::launcher_descriptor); it is ours until the rank has it.
  int theirs() const { return theirs_.get(); }
  void close_theirs() { theirs_.close(); }

  // Tells rank 0 of the end of a worker, once for each. It does not wait, and it does nothing if the rank is gone.
  void tell(const WorkerEnd& end) const;
  // Tells that no worker is left.
  void close() const;
  // Returns whether the rank has been silent for so long, but at least for as long as a healthy rank may be: while its
  // program is loaded, and between two beats. Call it as often as base::RunningTime wants.
  bool is_silent_for(double seconds);

 private:
  OwnedDescriptor ours_, theirs_;
  base::RunningTime silence_;
  bool has_beaten_ = false;
};

// The rank's end, for rank 0's news of workers. The descriptor stays open as long as the process runs.
class StartedWorkers {
 public:
  // Without a descriptor nobody tells.
  explicit StartedWorkers(std::optional<int> launcher_descriptor) : descriptor_(launcher_descriptor) {}

  // Returns whether each of them has ended; nothing if nobody tells. Throws EnvironmentError if the descriptor is no
  // such socket.
  std::optional<bool> have_all_ended();
  // Returns the first that failed, else the first that ended.
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
  // Without a descriptor nobody listens.
  explicit Heartbeat(std::optional<int> launcher_descriptor);

 private:
  std::jthread thread_;
};

}  // namespace tandem::mesh
