// How the ranks of a run find each other, and that they agree on what the run is.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "mesh/launch_variables.h"
#include "mesh/mesh.h"

namespace tandem::mesh {

// Connects devices that have a network of their own, given the connection between the hosts of the same ranks.
using DeviceNetwork =
    std::function<std::unique_ptr<device::Communicator>(device::Communicator& hosts, bool is_one_host)>;

struct JoinSettings {
  // Until all ranks have joined; later of a wait for what another rank computes, and for a host that is silent.
  double timeout_s = 600.0;
  std::string network_interface = "";             // "": the one that reaches the master's address
  bool trust_network = false;                     // ranks on several hosts may talk without a secret
  std::string secret = "";                        // of all ranks the same; seals what they say through the store
  std::string version = "";                       // of the program: of all ranks the same
  std::map<std::string, std::string> flags = {};  // name and value of what results depend on: of all ranks the same
  bool keeps_store = false;    // a rank alone has it all the same: others of the launch read it (announcement.h)
  int tensor_size = 1;         // ranks of a replica; divides the number of ranks
  DeviceNetwork device = {};   // empty: --device cpu, whose tensors go between the hosts
  std::string device_id = "";  // "": ranks may share their device
};

// On one machine rank 0 listens where only processes of its user find it (mesh/local_socket.h), and ranks talk through
// sockets that nobody else can open. On several it listens at the socket of its launcher, else at the master's address
// alone (nobody does where torchrun's agent does), and ranks connect with each other as mesh/peers.h says. The others
// connect. Returns when all ranks have, on every rank.
// UserError, on every rank: they were not started alike, or are on several hosts with neither a secret nor
// --trust-network. EnvironmentError: ranks are missing, and which; a port is in use; somebody else's word is in the
// store. A launch of one rank asks nobody.
std::unique_ptr<Mesh> join(const LaunchVariables& launch, const JoinSettings& settings);

}  // namespace tandem::mesh
