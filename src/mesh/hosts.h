// The address at which a process listens for those of other hosts, and the checks before it does. No torch.
#pragma once

#include <string>

#include "mesh/launch/launch_variables.h"

namespace tandem::mesh {

// Returns the address of this process for the others of the launch. Listening anywhere else would let strangers in.
// `interface` is --network-interface; "" means the one that reaches the master's address. Throws UserError where there
// is none.
std::string own_address(const LaunchVariables& launch, const std::string& interface);

// Throws UserError if the launch is on several hosts with neither a secret nor --trust-network, or cannot reach the
// master's address.
void check_hosts(const LaunchVariables& launch, bool trust_network, const std::string& secret);

// Returns the same text on all processes of a machine, and on no other machine, until it is switched off. Containers of
// a machine share it.
std::string machine_id();

}  // namespace tandem::mesh
