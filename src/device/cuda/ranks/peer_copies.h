// Copies tensors from rank to rank by the GPUs' copy engines, which leave the multiprocessors to computation. Chunk
// after chunk, the sender writes into a place in the receiver's memory, and the receiver copies from there to where the
// bytes belong. Each place has two words, one on either side, by which the streams wait for each other:
//
//   sender's `occupied`    1: the receiver has not yet taken what was written there
//   receiver's `arrived`   1: something is there
//
// All is queued on one stream, in rounds: a write of a round waits for nothing but reads of an earlier one, so streams
// never wait for each other in a circle. Since the words have the same values again afterwards, all of it may be
// recorded and replayed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "device/cuda/ranks/peer_memory.h"
#include "device/cuda/ranks/peer_sum.h"
#include "device/exchange_chunks.h"

namespace tandem::device::cuda {

class PeerCopies {
 public:
  static constexpr int kPlaces = 4;                           // places of each pair of ranks, in each direction
  static constexpr int64_t kPlacesBytes = int64_t{64} << 20;  // bytes of all places of a rank

  // Returns the bytes that each rank's memory holds for this, from `begin` on, which is the same on all ranks.
  static int64_t bytes(int size);
  PeerCopies(const PeerMemory& memory, int64_t begin);

  // Every rank queues the same exchanges in the same order.
  void queue(const std::vector<Piece>& to, const std::vector<Piece>& from, cudaStream_t stream);
  // Lets this rank's stream run on, whatever the others do; the bytes then mean nothing. Call it until the stream is
  // empty, with another stream of the same device.
  void let_go(cudaStream_t other) const;

 private:
  struct Words {
    uint32_t occupied[kMostPeers][kPlaces], arrived[kMostPeers][kPlaces];  // words by the other rank and place
  };

  static int64_t chunk_bytes(int size);
  Words& words_of(int rank) const;
  std::byte* bytes_of(int receiver, int sender, int place) const;
  void write(const Chunk& chunk, int receiver, cudaStream_t stream);
  void take(const Chunk& chunk, int sender, cudaStream_t stream);

  const PeerMemory& memory_;
  const int64_t begin_;
  int next_to_write_[kMostPeers] = {}, next_to_take_[kMostPeers] = {};  // next place, by the other rank
};

}  // namespace tandem::device::cuda
