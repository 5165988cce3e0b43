// The memory through which ranks of one host add up what each computed (peer_sum.h): taken, shown to the others and
// mapped.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "device/communicator.h"
#include "device/cuda/peer_sum.h"

namespace tandem::device::cuda {

class PeerMemories {
 public:
  // Every rank calls it, with the communicator of all of them, which moves tensors of device `index`. Null, on every
  // rank, where some cannot map another's memory.
  static std::unique_ptr<PeerMemories> open(int index, Communicator& ranks);
  ~PeerMemories();
  PeerMemories(const PeerMemories&) = delete;
  PeerMemories& operator=(const PeerMemories&) = delete;

  const Peers& peers() const { return peers_; }
  // Ends waits that are under way, and all that come.
  void give_up() noexcept;

 private:
  PeerMemories(Communicator& ranks);
  bool take();
  bool map(const std::vector<cudaIpcMemHandle_t>& handles);

  Peers peers_;
  std::byte* own_ = nullptr;         // PeerMemory, and behind it what num_sums points to
  uint32_t* is_given_up_ = nullptr;  // of the host
};

}  // namespace tandem::device::cuda
