// The connections between ranks that may be on several machines: a local socket (mesh/local_socket.h) between two of
// one machine, TCP between two of different machines, and TLS on it where the launch has a secret. They find each other
// through the launch's store.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "mesh/channel.h"

namespace tandem::mesh {

struct PeerSettings {
  std::string name;  // of these ranks' communicator: of all of them the same, and no other communicator's
  std::string run;   // a text that this run alone has; a connection of another run is not taken
  int rank = 0, size = 1;
  std::string address;  // of this host: it listens there, while the ranks connect
  // Ranks with the same text connect by local sockets; see local_place().
  std::string place;
  std::string secret;  // "": whoever comes is trusted (--trust-network)
  double timeout_s = 600.0;
};

// Every rank calls it. Returns, by rank, the connections to the others when all are there. PeerLost names the ranks
// that did not come within the time. EnvironmentError: the store has a value that was not written with the secret.
std::vector<Connection> connect_peers(c10d::Store& store, const PeerSettings& settings);

}  // namespace tandem::mesh
