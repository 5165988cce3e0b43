// A communicator of the hosts' ranks over connected stream sockets, one to each other rank: local sockets within a
// machine, TCP between machines (mesh/peers.h). Where a connection has a TLS session, every byte goes through it.
//
// A thread of each rank sends beats to the others every few seconds, whatever the rank is busy with: its process runs.
// So a process that is frozen (SIGSTOP, a debugger, a frozen control group) is told from one that takes long: it is
// given up after silence_s. A process that dies is noticed at once.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/communicator.h"
#include "mesh/channel.h"

namespace tandem::mesh {

struct SocketRanks {
  std::string name;  // name for messages
  int rank = 0;
  std::vector<Connection> connections;  // connections to each rank, by rank; none for the own rank
  double wait_s = 600.0;                // timeout of one wait for another rank that beats; see device::WaitsForSamples
  double silence_s = 600.0;             // timeout after which a rank that does not even beat is lost
  // Called once, from any thread, when this communicator can no longer be used. It must not call the communicator.
  std::function<void()> on_failure = {};
};

// A rank that destroys its communicator is missed only by one that begins, or has begun, an exchange that it has not.
// Exchanges must not outlive their communicator.
std::unique_ptr<device::Communicator> make_socket_communicator(SocketRanks ranks);

}  // namespace tandem::mesh
