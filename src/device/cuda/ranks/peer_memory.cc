#include "device/cuda/ranks/peer_memory.h"

#include <ATen/ops/from_blob.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "device/cuda/ranks/shown_memory.h"

namespace tandem::device::cuda {
namespace {

// This is not LibTorch's memory, since others map all of an allocation. Returns an undefined tensor if there is too
// little.
at::Tensor allocate(int index, int64_t bytes) {
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
  void* memory = nullptr;
  if (cudaMalloc(&memory, static_cast<size_t>(bytes)) != cudaSuccess) {
    cudaGetLastError();  // there are other ways to move bytes
    return {};
  }
  at::Tensor tensor = at::for_blob(memory, {bytes})
                          .options(at::TensorOptions(at::kByte).device(device))
                          .target_device(device)
                          .deleter([](void* address) { cudaFree(address); })
                          .make_tensor();
  tensor.zero_();
  cudaDeviceSynchronize();
  return tensor;
}

}  // namespace

std::unique_ptr<PeerMemory> PeerMemory::open(int index, int64_t bytes, Communicator& hosts) {
  std::vector<at::Tensor> memory(static_cast<size_t>(hosts.size()));
  const auto own = static_cast<size_t>(hosts.rank());
  memory[own] = allocate(index, bytes);
  const std::string word = memory[own].defined() ? show_cuda_memory(memory[own]) : "";
  const std::vector<std::string> words = all_gather_text(hosts, word);
  for (size_t rank = 0; rank < memory.size(); ++rank) {
    if (rank != own) memory[rank] = map_cuda_memory(index, words[rank]);
  }
  const bool is_mapped = std::ranges::all_of(memory, [](const at::Tensor& tensor) { return tensor.defined(); });
  // After this, every rank's memory is zeroed and mapped.
  if (any_of(hosts, !is_mapped || word.empty())) return nullptr;
  return std::unique_ptr<PeerMemory>(new PeerMemory(hosts.rank(), std::move(memory)));
}

}  // namespace tandem::device::cuda
