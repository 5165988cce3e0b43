// Where a run is found by the processes that only sample for it: on its machine at a socket of its user that is named
// after its --save, on others at an address of a network, which is read in the launch's store or was given to them.
#pragma once

#include <memory>
#include <string>

#include "config/train_config.h"
#include "mesh/channel.h"
#include "mesh/channel_listener.h"

namespace tandem::session {

// The name of the socket at which the run with this --save listens.
std::string workers_address(const std::string& save);

// The secret that this process was given; "": none.
std::string own_secret();

// Whether the processes of this launch, some of which only sample, are on several hosts.
bool is_on_several_hosts(const config::TrainConfig& config);

// Of the conductor: where it listens for other machines, if it does, since processes of its launch are there or
// --rollout-listen asks for it. UserError: it has neither a secret nor --trust-network, or no network to listen on.
mesh::NetworkDoor network_door(const config::TrainConfig& config);
// Of the conductor: where it listens for the other ranks that train, if they are on several machines. On every rank it
// has the secret.
mesh::NetworkDoor ranks_door(const config::TrainConfig& config);
// To those of the launch, and to the user; `port`: where it listens.
void say_where(const config::TrainConfig& config, const mesh::NetworkDoor& door, int port);

// The run that this process is to sample for. Waits until it listens, and until it has time for who comes.
// EnvironmentError: there is none within --distributed-timeout-minutes, or it has another secret. UserError: this
// process has neither a secret nor --trust-network.
std::unique_ptr<mesh::Channel> find_run(const config::TrainConfig& config);

}  // namespace tandem::session
