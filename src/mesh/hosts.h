// Where a process listens for those of other hosts, and what it needs before it does. No torch.
#pragma once

#include <string>

#include "mesh/launch_variables.h"

namespace tandem::mesh {

// Of this process, to the others of the launch. Listening anywhere else would let in who has no business here.
// `interface`: --network-interface; "": the one that reaches the master's address. UserError where there is none.
std::string own_address(const LaunchVariables& launch, const std::string& interface);

// UserError where the launch is on several hosts with neither a secret nor --trust-network, or cannot reach the
// master's address.
void check_hosts(const LaunchVariables& launch, bool trust_network, const std::string& secret);

// The same text on all processes of a machine, and no other machine's, as long as it is switched on. Containers of a
// machine share it.
std::string machine_id();

}  // namespace tandem::mesh
