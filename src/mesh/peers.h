// Connects ranks that may be on several machines: by a local socket (mesh/local_socket.h) within a machine, by TCP
// between machines, with TLS where the launch has a secret. The ranks find each other through the launch's store.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "mesh/channel.h"

namespace tandem::mesh {

struct PeerSettings {
  std::string name;  // name of the communicator: the same on all of its ranks, and no other communicator's
  std::string run;   // a text that this run alone has; a connection of another run is not taken
  int rank = 0, size = 1;
  std::string address;  // this host's address, at which it listens while the ranks connect
  // Ranks with the same text connect by local sockets; see local_place().
  std::string place;
  std::string secret;  // "": every connection is trusted (--trust-network)
  double timeout_s = 600.0;
};

// Every rank calls it. Returns the connections to the others, by rank, once all are there. Throws PeerLost, which names
// the ranks that did not come within the time, and EnvironmentError if the store has a value that was not written with
// the secret.
std::vector<Connection> connect_peers(c10d::Store& store, const PeerSettings& settings);

}  // namespace tandem::mesh
