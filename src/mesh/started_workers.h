// How a run's conductor learns that the workers (processes that only sample) which were started with it have ended: the
// launcher, whose children they are, tells it through a socket. The other way the conductor tells the launcher every
// second that its process runs. Under another launcher nobody does. No torch.
#pragma once

#include <optional>
#include <string>

#include "mesh/network.h"

namespace tandem::mesh {

struct WorkerEnd {
  int code = 0;     // as LaunchEnd has it
  std::string how;  // "rank 2 of 3 exited with code 2: --device cuda:9: ..."
};

// The launcher's end.
class WorkerEndsTeller {
 public:
  // Makes the socket. EnvironmentError: no descriptor is left.
  WorkerEndsTeller();
  // For the conductor alone (LaunchVariables::workers_descriptor); ours until it has it.
  int theirs() const { return theirs_.get(); }
  void close_theirs() { theirs_.close(); }

  // Of each worker once. Does not wait, and a conductor that is gone misses nothing.
  void tell(const WorkerEnd& end) const;
  // No worker is left.
  void close() const;
  // Whether the conductor has said since the last call that its process runs.
  bool has_beaten() const;

 private:
  OwnedDescriptor ours_, theirs_;
};

// The conductor's end.
class StartedWorkers {
 public:
  // Takes the descriptor that the launcher gave; nothing: nobody tells.
  explicit StartedWorkers(std::optional<int> descriptor);

  // Whether each of them has ended; nothing where nobody tells. EnvironmentError: the descriptor is no such socket.
  std::optional<bool> have_all_ended();
  // Tells the launcher that this process runs. Does not wait.
  void beat() const;
  // The first that failed, else the first that ended.
  const std::optional<WorkerEnd>& first_end() const { return first_end_; }

 private:
  OwnedDescriptor socket_;
  bool have_ended_ = false;
  std::optional<WorkerEnd> first_end_;
};

}  // namespace tandem::mesh
