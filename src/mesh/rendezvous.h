// Brings the ranks of a run together, and checks that they agree on what the run is.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "mesh/launch/launch_variables.h"
#include "mesh/mesh.h"

namespace tandem::mesh {

// Connects devices that have a network of their own, given the connection between the hosts of the same ranks.
using DeviceNetwork =
    std::function<std::unique_ptr<device::Communicator>(device::Communicator& hosts, bool is_one_host)>;

struct JoinSettings {
  // This is the timeout until all ranks have joined; later that of a wait for another rank's results, and of a host
  // that is silent.
  double timeout_s = 600.0;
  std::string network_interface = "";             // "": the interface that reaches the master's address
  bool trust_network = false;                     // true: ranks on several hosts may talk without a secret
  std::string secret = "";                        // the same on all ranks; seals their values in the store
  std::string version = "";                       // version of the program, the same on all ranks
  std::map<std::string, std::string> flags = {};  // flags that results depend on, the same on all ranks
  bool keeps_store = false;    // true: even a rank alone has a store, which others of the launch read (announcement.h)
  int tensor_size = 1;         // ranks of a replica; divides the number of ranks
  bool is_inexact = false;     // what the check of this rank's device found (agreement.h)
  DeviceNetwork device = {};   // empty: --device cpu, whose tensors go between the hosts
  std::string device_id = "";  // "": ranks may share their device
};

// On one machine rank 0 listens where only processes of its user find it (mesh/local_socket.h), and ranks talk through
// sockets that nobody else can open. On several it listens at the socket of its launcher, else at the master's address
// alone (nobody does where torchrun's agent does), and ranks connect with each other as mesh/peers.h says. The others
// connect. Returns when all ranks have, on every rank. Throws UserError, on every rank, if they were not started alike,
// or are on several hosts with neither a secret nor --trust-network. Throws EnvironmentError if ranks are missing,
// which it names, if a port is in use, or if a stranger has written into the store. A launch of one rank asks nobody.
std::unique_ptr<Mesh> join(const LaunchVariables& launch, const JoinSettings& settings);

}  // namespace tandem::mesh
