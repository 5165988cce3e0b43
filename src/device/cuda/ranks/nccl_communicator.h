// A communicator between ranks of NVIDIA GPUs by NCCL's sends and receives. NVLink's multicast is off: it sums, which
// we do not ask for, and takes memory.
#pragma once

#include <memory>

#include "device/communicator.h"
#include "device/device_ranks.h"

namespace tandem::device {

// Implements Backend::make_communicator, whether or not the ranks share memory.
std::unique_ptr<Communicator> make_nccl_communicator(int index, const DeviceRanks& ranks);

}  // namespace tandem::device
