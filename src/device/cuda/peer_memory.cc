#include "device/cuda/peer_memory.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace tandem::device::cuda {
namespace {

constexpr size_t kOwnBytes = sizeof(PeerMemory) + kPeerBlocks * sizeof(uint32_t);

// The message of one rank to the others: whether it could take or map memory, and the handle of its own.
struct Word {
  cudaIpcMemHandle_t handle = {};
  int32_t is_good = 0;
};

std::vector<Word> gather(Communicator& ranks, int index, const Word& mine) {
  const auto options = at::TensorOptions(at::kByte).device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
  TensorLists parts;
  for (int rank = 0; rank < ranks.size(); ++rank) parts.push_back({at::empty({sizeof(Word)}, options)});
  const at::Tensor host = at::empty({sizeof(Word)}, at::kByte);
  std::memcpy(host.mutable_data_ptr(), &mine, sizeof mine);
  parts[static_cast<size_t>(ranks.rank())][0].copy_(host);
  all_gather(ranks, parts);
  std::vector<Word> words(parts.size());
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    std::memcpy(&words[rank], parts[rank][0].cpu().const_data_ptr(), sizeof(Word));
  }
  return words;
}

bool all_good(const std::vector<Word>& words) {
  return std::ranges::all_of(words, [](const Word& word) { return word.is_good != 0; });
}

// Whether a call succeeded. A failure is forgotten: without shared memory the ranks exchange their parts by NCCL.
bool is_done(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess;
}

}  // namespace

PeerMemories::PeerMemories(Communicator& ranks) {
  peers_.rank = ranks.rank();
  peers_.size = ranks.size();
}

// Memory that is shown to other processes is none of LibTorch's: they map all of an allocation.
bool PeerMemories::take() {
  void* own = nullptr;
  void* word = nullptr;
  if (!is_done(cudaMalloc(&own, kOwnBytes))) return false;
  own_ = static_cast<std::byte*>(own);
  if (!is_done(cudaMemset(own, 0, kOwnBytes))) return false;
  if (!is_done(cudaHostAlloc(&word, sizeof(uint32_t), cudaHostAllocMapped))) return false;
  is_given_up_ = static_cast<uint32_t*>(word);
  *is_given_up_ = 0;
  void* seen_by_device = nullptr;
  if (!is_done(cudaHostGetDevicePointer(&seen_by_device, word, 0))) return false;
  peers_.memory[peers_.rank] = reinterpret_cast<PeerMemory*>(own_);
  peers_.num_sums = reinterpret_cast<uint32_t*>(own_ + sizeof(PeerMemory));
  peers_.is_given_up = static_cast<const uint32_t*>(seen_by_device);
  return true;
}

bool PeerMemories::map(const std::vector<cudaIpcMemHandle_t>& handles) {
  for (int rank = 0; rank < peers_.size; ++rank) {
    if (rank == peers_.rank) continue;
    void* memory = nullptr;
    const cudaIpcMemHandle_t& handle = handles[static_cast<size_t>(rank)];
    if (!is_done(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess))) return false;
    peers_.memory[rank] = static_cast<PeerMemory*>(memory);
  }
  return true;
}

std::unique_ptr<PeerMemories> PeerMemories::open(int index, Communicator& ranks) {
  if (ranks.size() == 1 || ranks.size() > kMostPeers) return nullptr;
  std::unique_ptr<PeerMemories> memories(new PeerMemories(ranks));
  Word mine;
  mine.is_good = memories->take() && is_done(cudaIpcGetMemHandle(&mine.handle, memories->own_)) ? 1 : 0;
  std::vector<Word> words = gather(ranks, index, mine);
  if (!all_good(words)) return nullptr;
  std::vector<cudaIpcMemHandle_t> handles;
  for (const Word& word : words) handles.push_back(word.handle);
  mine.is_good = memories->map(handles) ? 1 : 0;
  // Behind this everybody's memory is zeroed and mapped.
  return all_good(gather(ranks, index, mine)) ? std::move(memories) : nullptr;
}

PeerMemories::~PeerMemories() {
  give_up();
  cudaDeviceSynchronize();
  for (int rank = 0; rank < peers_.size; ++rank) {
    if (rank != peers_.rank && peers_.memory[rank] != nullptr) cudaIpcCloseMemHandle(peers_.memory[rank]);
  }
  cudaFree(own_);
  cudaFreeHost(is_given_up_);
}

void PeerMemories::give_up() noexcept {
  if (is_given_up_ != nullptr) *static_cast<volatile uint32_t*>(is_given_up_) = 1;
}

}  // namespace tandem::device::cuda
