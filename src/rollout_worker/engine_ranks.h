// The processes of an engine that only samples: the ranks that hold one copy of the model between them. The first talks
// with the run; what the others need of that it passes on, in the run's own messages (sampling/processes/messages.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/communicator.h"
#include "sampling/processes/messages.h"

namespace tandem::rollout_worker {

// Shows one rank the ranks of its engine. All ranks make the same calls in the same order, except that the first rank
// calls pass_on() where the others call next(). Calls throw PeerLost if a rank is gone. If there is only one rank,
// nothing is passed on.
class EngineRanks {
 public:
  static constexpr int kFirst = 0;

  // `hosts` connects the ranks' hosts, and is borrowed.
  explicit EngineRanks(device::Communicator& hosts) : hosts_(hosts) {}

  int rank() const { return hosts_.rank(); }
  int size() const { return hosts_.size(); }
  bool is_first() const { return rank() == kFirst; }
  device::Communicator& hosts() const { return hosts_; }

  // Sends a message to all other ranks. Only the first rank calls it.
  void pass_on(const sampling::Message& message);
  // Waits for the first rank's next message, as long as it takes. Only the other ranks call it.
  sampling::Message next();
  // Copies `num_bytes` of the host's memory from the first rank, where `bytes` are these, to `rank`, which gets them
  // as its result; the result of the others is empty.
  std::vector<std::byte> pass_bytes(int rank, std::span<const std::byte> bytes, int64_t num_bytes);
  bool any_of(bool mine);

 private:
  device::Communicator& hosts_;
};

}  // namespace tandem::rollout_worker
