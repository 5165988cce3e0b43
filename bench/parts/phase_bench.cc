// Measures a change of phase in the overlay arena, for bench/phases.py. Prints JSON. It needs an NVIDIA GPU; no torch.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "device/cuda/memory/cuda_vmm.h"
#include "memory/arena.h"

namespace tandem {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30, kExtentBytes = int64_t{512} << 20;

void check_cuda(cudaError_t error) {
  TANDEM_ENV_CHECK(error == cudaSuccess, cudaGetErrorString(error), "; see nvidia-smi");
}
void wait() { check_cuda(cudaDeviceSynchronize()); }

base::Json summary(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {{"least", values.front()}, {"median", values[values.size() / 2]}, {"most", values.back()}};
}

// Counts the calls that a change of phase would make if anything had to be mapped.
class CountingVmm final : public device::CudaVmm {
 public:
  bool map(std::byte* address, device::ExtentId extent) override { return ++num_calls, CudaVmm::map(address, extent); }
  void unmap(std::byte* address, int64_t bytes) override { ++num_calls, CudaVmm::unmap(address, bytes); }
  std::optional<device::ExtentId> create_extent(int64_t bytes) override {
    return ++num_calls, CudaVmm::create_extent(bytes);
  }
  void release_extent(device::ExtentId extent) override { ++num_calls, CudaVmm::release_extent(extent); }
  int64_t num_calls = 0;
};

// Measures from the last kernel of one view to the first of the other, by the device's clock. The KV cache has the
// whole arena in one phase, a hundred tensors have it in the other.
base::Json phase_change(int64_t bytes) {
  CountingVmm vmm;
  memory::Ledger ledger;
  memory::ExtentPool pool(vmm, ledger, kExtentBytes);
  memory::Arena arena(pool, {.num_extents = bytes / kExtentBytes, .synchronize = wait});
  cudaEvent_t last, first;
  check_cuda(cudaEventCreate(&last));
  check_cuda(cudaEventCreate(&first));
  std::vector<double> to_train, to_rollout;
  std::vector<std::byte*> tensors;
  int64_t calls = 0;
  const auto change = [&](memory::Phase phase, std::vector<double>& into) {
    check_cuda(cudaEventRecord(last));
    const int64_t before = vmm.num_calls;
    for (std::byte* tensor : tensors) arena.free(tensor);
    tensors.clear();
    arena.enter(phase);
    const memory::View view = memory::view_of(phase);
    if (phase == memory::Phase::kRollout) {
      tensors.push_back(arena.allocate(view, bytes, memory::Tag::kKv, "kv cache"));
    } else {
      for (int i = 0; i < 100; ++i)
        tensors.push_back(arena.allocate(view, bytes / 128, memory::Tag::kBlockGraphs, "a tensor"));
    }
    calls += vmm.num_calls - before;
    check_cuda(cudaEventRecord(first));
    for (std::byte* tensor : tensors) check_cuda(cudaMemsetAsync(tensor, 1, kExtentBytes / 2, nullptr));
    check_cuda(cudaEventSynchronize(first));
    float elapsed_ms = 0;
    check_cuda(cudaEventElapsedTime(&elapsed_ms, last, first));
    into.push_back(elapsed_ms);
  };
  std::vector<double> ignored;
  change(memory::Phase::kRollout, ignored);
  for (int i = 0; i < 20; ++i) {
    change(memory::Phase::kTrain, to_train);
    change(memory::Phase::kRollout, to_rollout);
  }
  wait();
  for (std::byte* tensor : tensors) arena.free(tensor);
  return {{"gib", bytes / kGiB},
          {"to_train_ms", summary(to_train)},
          {"to_rollout_ms", summary(to_rollout)},
          {"driver_calls", calls}};
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  try {
    tandem::check_cuda(cudaSetDevice(0));
    tandem::check_cuda(cudaFree(nullptr));
    std::puts(
        tandem::base::dump_json(tandem::phase_change((argc > 1 ? std::atoll(argv[1]) : 64) * tandem::kGiB)).c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "phase_bench: %s\n", error.what());
    return 3;
  }
}
