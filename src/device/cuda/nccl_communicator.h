// Ranks of NVIDIA GPUs: NCCL's sends and receives, on a stream of their own beside what the device computes.
#pragma once

#include <memory>
#include <string>

#include "device/communicator.h"
#include "device/device_ranks.h"

namespace tandem::device {

// As Backend says. NVLink's multicast is off: it sums, which we do not ask for, and takes memory.
//
// An exchange's wait() makes the current stream wait, not the host. A rank that dies is noticed by NCCL, by the limit
// on time, or by whoever calls abort(): work that the device had queued then ends with whatever is in the tensors, and
// the next call of the communicator throws PeerLost. So whoever has waited for the device asks the communicator once
// more, an empty exchange is enough, before he uses what it computed.
std::string make_nccl_id(const std::string& interface);
std::unique_ptr<Communicator> make_nccl_communicator(int index, const DeviceRanks& ranks);

}  // namespace tandem::device
