// The address at which a process listens for those of other hosts, and the checks before it does. No torch.
#pragma once

#include <string>

#include "mesh/launch/launch_variables.h"

namespace tandem::mesh {

// Returns the address of this process for the others of the launch. Listening anywhere else would let strangers in.
// `interface` is --network-interface; "" means the one that reaches the master's address, whose name may be
// unknown for `wait_s` seconds. Throws UserError where there is none.
std::string own_address(const LaunchVariables& launch, const std::string& interface, double wait_s);

// Throws UserError if the launch is on several hosts with neither a secret nor --trust-network, or cannot reach the
// master's address; EnvironmentError if the master's name is still unknown after `wait_s` seconds.
void check_hosts(const LaunchVariables& launch, bool trust_network, const std::string& secret, double wait_s);

// Returns the same text on all processes of a machine, and on no other machine, until it is switched off. Containers of
// a machine share it.
std::string machine_id();

}  // namespace tandem::mesh
