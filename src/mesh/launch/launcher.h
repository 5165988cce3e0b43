// Starts the ranks of this host as child processes and waits for them. No torch.
//
// The ranks of a launch on one host know each other by random digits that it gives them. For several hosts the socket
// at which rank 0 meets the others listens before any of them runs, so nobody races for a port. Rank 0 has the
// terminal; the output of the others is kept, and shown only for the rank that fails first. Signals (Ctrl-C too) reach
// each rank once. Ranks hold parts of one state: when one fails the others are ended. The last ranks may be rollout
// workers, which hold none: when one of those fails it is reported, to rank 0 too if that is on this host, and the
// others continue. A rank whose process does not run (it was stopped, or is frozen) is killed after a while
// (mesh/launch/launcher_link.h). However the launcher ends, no rank is left.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace tandem::mesh {

struct LaunchPlan {
  std::vector<std::string> command;  // command of each rank; [0] is the file
  std::string shown_as = "";         // its [0] as ps shows it; "": the file
  int ranks_per_host = 1;
  int num_workers = 0;  // number of rollout workers, the last ranks, maybe all; the others continue without them
  int num_hosts = 1, host = 0;  // number of hosts, and the number of this one
  std::string master_address = "127.0.0.1";
  int master_port = 0;                                        // port of rank 0, for several hosts
  std::chrono::milliseconds grace = std::chrono::seconds(2);  // SIGTERM to SIGKILL, for ranks that did not fail
  double timeout_s = 600.0;                                   // silence after which a rank is killed
  // true: when standard input ends, whoever started us is gone. Ranks that were told to stop may then save and end; if
  // they were not, they are killed.
  bool ends_with_stdin = false;
};

struct LaunchEnd {
  // The code is 0 when all ranks ended so; else that of the first that failed, or 3 if a signal killed it. On a host of
  // workers alone it is 0 when one of them ended so.
  int code = 0;
  bool failed = false;  // false too if ranks ended as a passed-on signal asks
  // true: a signal was passed on to the ranks, one that a rank got stopped them all, or standard input ended in a
  // launch that ends with it. Such a run is not restarted.
  bool was_told_to_stop = false;
  std::string message;  // message of a failure: "rank 2 of 4 (host) was killed by signal 9; ..."
};

// Call it while the process has one thread: it forks, and its signal mask is changed until it returns. Of several hosts
// it first waits for the name of the first one, as address_of_host() does. It prints the output of the rank that failed
// first on stderr. Throws EnvironmentError if the ranks cannot be started.
LaunchEnd launch(const LaunchPlan& plan);

}  // namespace tandem::mesh
