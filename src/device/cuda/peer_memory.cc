#include "device/cuda/peer_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

namespace tandem::device::cuda {
namespace {

// Whether a call succeeded. A failure is forgotten: there are other ways to move bytes.
bool is_done(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess;
}

// Memory that is shown to other processes is none of LibTorch's: they map all of an allocation.
std::byte* allocate(int64_t bytes) {
  void* memory = nullptr;
  if (!is_done(cudaMalloc(&memory, static_cast<size_t>(bytes)))) return nullptr;
  if (is_done(cudaMemset(memory, 0, static_cast<size_t>(bytes))) && is_done(cudaDeviceSynchronize()))
    return static_cast<std::byte*>(memory);
  cudaFree(memory);
  return nullptr;
}

// Empty: it cannot be shown.
std::string handle_of(std::byte* memory) {
  cudaIpcMemHandle_t handle;
  if (memory == nullptr || !is_done(cudaIpcGetMemHandle(&handle, memory))) return {};
  return {reinterpret_cast<const char*>(&handle), sizeof handle};
}

std::byte* map(std::string_view text) {
  cudaIpcMemHandle_t handle;
  if (text.size() != sizeof handle) return nullptr;
  std::memcpy(&handle, text.data(), sizeof handle);
  void* memory = nullptr;
  if (!is_done(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess))) return nullptr;
  return static_cast<std::byte*>(memory);
}

}  // namespace

std::unique_ptr<PeerMemory> PeerMemory::open(int64_t bytes, Communicator& hosts) {
  std::unique_ptr<PeerMemory> result(new PeerMemory(hosts));
  std::vector<std::byte*>& memory = result->memory_;
  const auto own = static_cast<size_t>(result->rank_);
  memory[own] = allocate(bytes);
  const std::vector<std::string> handles = all_gather_text(hosts, handle_of(memory[own]));
  for (size_t rank = 0; rank < memory.size(); ++rank) {
    if (rank != own) memory[rank] = map(handles[rank]);
  }
  // Behind this everybody's memory is zeroed and mapped.
  const bool is_mapped = std::ranges::find(memory, nullptr) == memory.end();
  return any_of(hosts, !is_mapped) ? nullptr : std::move(result);
}

PeerMemory::~PeerMemory() {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != rank_ && of(rank) != nullptr) cudaIpcCloseMemHandle(of(rank));
  }
  cudaFree(of(rank_));
}

}  // namespace tandem::device::cuda
