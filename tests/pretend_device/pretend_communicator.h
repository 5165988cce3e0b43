// Moves tensors between pretended devices of one machine: through the hosts, over sockets of its own.
#pragma once

#include <memory>

#include "device/device_ranks.h"

namespace tandem::pretend_device {

// Every rank calls it. Throws PeerLost if not all came within the time.
std::unique_ptr<device::Communicator> make_communicator(const device::DeviceRanks& ranks);

}  // namespace tandem::pretend_device
