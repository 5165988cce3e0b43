// An exchange of experts (device/expert_exchange.h) between GPUs that map each other's memory: two kernels a layer
// (peer_experts.h), which may be recorded.
#pragma once

#include <memory>

#include "device/communicator.h"
#include "device/expert_exchange.h"

namespace tandem::device {

// Every rank calls it. `is_given_up` is the word of PeerExperts, as the device sees it, and outlives the exchange.
// Returns null, on every rank, where some rank cannot map another's memory. UserError for sizes without kernels.
std::unique_ptr<ExpertExchange> make_peer_expert_exchange(int index, const SharedExperts& shared, Communicator& hosts,
                                                          const uint32_t* is_given_up);

}  // namespace tandem::device
