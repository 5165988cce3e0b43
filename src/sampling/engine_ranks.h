// The processes of an engine that only samples: the ranks that hold one copy of the model between them. The first talks
// with the run; what the others need of that it passes on, in the run's own messages (sampling/messages.h).
#pragma once

#include <cstddef>
#include <span>

#include "device/communicator.h"
#include "sampling/messages.h"

namespace tandem::sampling {

// As one of them sees them. All ranks make the same calls in the same order, but that the first passes on what the
// others take. PeerLost where one of them is gone. Where there is one rank, nothing is passed on.
class EngineRanks {
 public:
  static constexpr int kFirst = 0;

  // Between their hosts; borrowed.
  explicit EngineRanks(device::Communicator& hosts) : hosts_(hosts) {}

  int rank() const { return hosts_.rank(); }
  int size() const { return hosts_.size(); }
  bool is_first() const { return rank() == kFirst; }
  device::Communicator& hosts() const { return hosts_; }

  // Of the first rank, to all others.
  void pass_on(const Message& message);
  // On the others, as long as it takes.
  Message next();
  // Bytes of the host's memory from the first rank to `rank`: the first gives them, that one has as many written where
  // it says, and the rest give none.
  void pass_bytes(int rank, std::span<std::byte> bytes);
  bool any_of(bool mine);

 private:
  device::Communicator& hosts_;
};

}  // namespace tandem::sampling
