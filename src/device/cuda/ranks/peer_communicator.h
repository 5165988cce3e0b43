// A communicator between ranks of one host whose GPUs map each other's memory: exchanges by copy engines
// (peer_copies.h), small sums in one kernel (peer_sum.h).
#pragma once

#include <memory>

#include "device/communicator.h"
#include "device/device_ranks.h"

namespace tandem::device {

// Implements Backend::make_communicator. Returns null, on every rank, where some rank cannot map another's memory, or
// there are more than kMostPeers.
std::unique_ptr<Communicator> make_peer_communicator(int index, const DeviceRanks& ranks);

}  // namespace tandem::device
