// Addresses at which the processes that only sample for a run find it: on its machine a socket of its user that is
// named after its --save, on other machines a network address, which they read in the launch's store or were given.
#pragma once

#include <memory>
#include <string>

#include "config/mesh_options.h"
#include "config/train_config.h"
#include "mesh/channel.h"
#include "mesh/channel_listener.h"
#include "mesh/launch/launch.h"

namespace tandem::session {

// Returns the name of the socket at which the run with this --save listens.
std::string workers_address(const std::string& save);

// Returns where the conductor listens for other machines. It does so if processes of its launch are there or
// --rollout-listen asks for it. Throws UserError if it has neither a secret nor --trust-network, or no network to
// listen on.
mesh::NetworkDoor network_door(const config::MeshOptions& options, const mesh::Launch& launch);
// Returns where the conductor listens for the other ranks that train, if they are on several machines. On every rank
// the result has the secret.
mesh::NetworkDoor ranks_door(const config::TrainConfig& config, const mesh::Launch& launch);
// Tells the processes of the launch, and the user, where the run listens; `port` is the port that it got.
void say_where(const config::TrainConfig& config, const mesh::Launch& launch, const mesh::NetworkDoor& door, int port);

// Connects to the run that this process is to sample for. Waits until it listens, and until it has time for those who
// come. Throws EnvironmentError if there is none within --distributed-timeout-minutes, and UserError if it has another
// secret or this process has neither a secret nor --trust-network.
std::unique_ptr<mesh::Channel> find_run(const config::TrainConfig& config, const mesh::Launch& launch);

}  // namespace tandem::session
