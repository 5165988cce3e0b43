// Steps that the engines of several ranks make together, because the ranks share experts (device/expert_exchange.h).
// Each engine has sequences of its own. Before each step the ranks tell each other how many rows they have. If all rows
// are decodes, they make the step together, each filled up to the most rows of one rank: a rank that has none computes
// rows that mean nothing. If one of them prefills, each makes its step by itself, since prefills read all experts
// anyway. The bits are the same, so that nobody else has to know.
#pragma once

#include <cstdint>

#include "device/communicator.h"
#include "device/expert_exchange.h"

namespace tandem::rollout {

class SharedSteps {
 public:
  // Both are borrowed. `hosts` connects the hosts of the exchange's ranks.
  SharedSteps(device::Communicator& hosts, device::ExpertExchange& exchange) : hosts_(hosts), exchange_(exchange) {}

  // The step that a rank can make next.
  struct Plan {
    int64_t rows = 0;           // decodes
    bool is_by_itself = false;  // it is a step that cannot be shared
    bool has_left = false;      // the rank makes steps only for the others
  };
  struct Agreed {
    int64_t rows = 0;  // the rows of the step that all ranks make together; 0: each makes its own
    bool all_left = false;
  };
  // Every rank calls it for each step. Waits for the others as long as it takes; throws PeerLost if one is gone.
  Agreed agree(const Plan& plan);

  device::ExpertExchange& exchange() const { return exchange_; }

 private:
  device::Communicator& hosts_;
  device::ExpertExchange& exchange_;
};

}  // namespace tandem::rollout
