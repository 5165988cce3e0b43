// A communicator between ranks of Ascend NPUs. HCCL moves bytes and adds nothing, so that no setting of its own, such
// as HCCL_DETERMINISTIC, decides a bit of a sum.
//
// Exchanges run on a stream of their own, parallel to work that is queued after they began. It is the host that waits:
// start_exchange() for the device's earlier work, wait() for the exchange. So nothing here depends on torch_npu's
// streams or on its queue of work on the host, and an exchange whose wait() has returned is over. wait() waits for the
// exchanges that began after its own, too.
//
// A lost rank is noticed by the timeout, by abort(), or by HCCL. Then the exchange throws PeerLost, and so does every
// later call. The device may still write into the tensors that were to be received, until HCCL's own timeout, which is
// set to the same time: the process is to end.
#pragma once

#include <functional>
#include <memory>

#include "device/communicator.h"
#include "device/device_ranks.h"
#include "device/npu/acl_calls.h"
#include "device/npu/hccl_calls.h"

namespace tandem::device {

// Implements Backend::make_communicator; every rank calls it, with the device of its operations. `synchronize` waits
// for all work that this process has queued on the device. The calls outlive the communicator.
std::unique_ptr<Communicator> make_hccl_communicator(const npu::AclCalls& acl, const npu::HcclCalls& hccl, int index,
                                                     const DeviceRanks& ranks, std::function<void()> synchronize);

}  // namespace tandem::device
