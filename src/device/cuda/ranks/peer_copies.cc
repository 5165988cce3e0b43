#include "device/cuda/ranks/peer_copies.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "device/cuda/event.h"
#include "device/cuda/memory/cuda_driver.h"

namespace tandem::device::cuda {
namespace {

constexpr int64_t kWordsBytes = 4096;  // a whole page, so that places are aligned

CUdeviceptr address(const uint32_t* word) { return reinterpret_cast<CUdeviceptr>(word); }

// The stream waits until the word is `awaited`, and then flips it between 0 and 1.
void wait_and_flip(uint32_t* word, uint32_t awaited, cudaStream_t stream) {
  std::array<CUstreamBatchMemOpParams, 2> operations{};
  operations[0].waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
                             .address = address(word),
                             .value = awaited,
                             .flags = CU_STREAM_WAIT_VALUE_EQ,
                             .alias = 0};
  operations[1].writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                              .address = address(word),
                              .value = 1 - awaited,
                              .flags = CU_STREAM_WRITE_VALUE_DEFAULT,
                              .alias = 0};
  check_driver(driver().cuStreamBatchMemOp(stream, operations.size(), operations.data(), 0), "cuStreamBatchMemOp");
}

// Sets the word after all copies that the stream has queued.
void set(uint32_t* word, uint32_t value, cudaStream_t stream) {
  check_driver(driver().cuStreamWriteValue32(stream, address(word), value, CU_STREAM_WRITE_VALUE_DEFAULT),
               "cuStreamWriteValue32");
}

void copy(std::byte* to, const std::byte* from, int64_t bytes, cudaStream_t stream) {
  check_runtime(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream),
                "cudaMemcpyAsync");
}

// Places are used in turns.
int next(int& place) { return std::exchange(place, (place + 1) % PeerCopies::kPlaces); }

}  // namespace

int64_t PeerCopies::chunk_bytes(int size) {
  return kPlacesBytes / (kPlaces * (size - 1)) / kSectionAlignment * kSectionAlignment;
}

int64_t PeerCopies::bytes(int size) {
  static_assert(sizeof(Words) <= kWordsBytes);
  return kWordsBytes + chunk_bytes(size) * kPlaces * (size - 1);
}

PeerCopies::PeerCopies(const PeerMemory& memory, int64_t begin) : memory_(memory), begin_(begin) {
  TANDEM_CHECK(memory.size() > 1 && memory.size() <= kMostPeers);
}

PeerCopies::Words& PeerCopies::words_of(int rank) const { return *reinterpret_cast<Words*>(memory_.of(rank) + begin_); }

// A rank's places are ordered by the sender, who is none of its own.
std::byte* PeerCopies::bytes_of(int receiver, int sender, int place) const {
  const int index = (sender < receiver ? sender : sender - 1) * kPlaces + place;
  return memory_.of(receiver) + begin_ + kWordsBytes + index * chunk_bytes(memory_.size());
}

void PeerCopies::write(const Chunk& chunk, int receiver, cudaStream_t stream) {
  const int rank = memory_.rank(), place = next(next_to_write_[receiver]);
  std::byte* const bytes = bytes_of(receiver, rank, place);
  wait_and_flip(&words_of(rank).occupied[receiver][place], 0, stream);
  for (const Section& section : chunk) copy(bytes + section.offset, section.data, section.bytes, stream);
  set(&words_of(receiver).arrived[rank][place], 1, stream);
}

void PeerCopies::take(const Chunk& chunk, int sender, cudaStream_t stream) {
  const int rank = memory_.rank(), place = next(next_to_take_[sender]);
  const std::byte* const bytes = bytes_of(rank, sender, place);
  wait_and_flip(&words_of(rank).arrived[sender][place], 1, stream);
  for (const Section& section : chunk) copy(section.data, bytes + section.offset, section.bytes, stream);
  set(&words_of(sender).occupied[rank][place], 0, stream);
}

void PeerCopies::queue(const std::vector<Piece>& to, const std::vector<Piece>& from, cudaStream_t stream) {
  const int size = memory_.size(), rank = memory_.rank();
  struct Pair {  // the ranks that are `distance` apart
    int receiver = 0, sender = 0;
    std::vector<Chunk> sent, received;
  };
  std::vector<Pair> pairs;
  size_t num_rounds = 0;
  for (int distance = 1; distance < size; ++distance) {
    const int receiver = (rank + distance) % size, sender = (rank + size - distance) % size;
    pairs.push_back({.receiver = receiver,
                     .sender = sender,
                     .sent = chunks_of(to, receiver, chunk_bytes(size)),
                     .received = chunks_of(from, sender, chunk_bytes(size))});
    num_rounds = std::max({num_rounds, pairs.back().sent.size(), pairs.back().received.size()});
  }
  for (size_t round = 0; round <= num_rounds; ++round) {
    for (const Pair& pair : pairs) {
      if (round < pair.sent.size()) write(pair.sent[round], pair.receiver, stream);
    }
    for (const Pair& pair : pairs) {
      if (round > 0 && round - 1 < pair.received.size()) take(pair.received[round - 1], pair.sender, stream);
    }
  }
}

void PeerCopies::let_go(cudaStream_t other) const {
  Words& words = words_of(memory_.rank());
  const auto fill = [other](auto& all, uint32_t value) {
    driver().cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(&all), value, sizeof all / sizeof(uint32_t), other);
  };
  fill(words.occupied, 0);
  fill(words.arrived, 1);
}

}  // namespace tandem::device::cuda
