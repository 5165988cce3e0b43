// What the device's memory costs to move, by bench/regions.py: a change of phase in the overlay arena, pause and resume
// of a region, and beside them what the bus and the driver give. Prints JSON. Needs an NVIDIA GPU; no torch.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/json.h"
#include "device/cuda/cuda_host_memory.h"
#include "device/cuda/cuda_vmm.h"
#include "memory/arena.h"
#include "memory/region.h"

namespace tandem {
namespace {

using base::Clock;
using base::seconds_since;

constexpr int64_t kGiB = int64_t{1} << 30, kExtentBytes = int64_t{512} << 20;

void check_cuda(cudaError_t error) {
  TANDEM_ENV_CHECK(error == cudaSuccess, cudaGetErrorString(error), "; see nvidia-smi");
}
void wait() { check_cuda(cudaDeviceSynchronize()); }

double milliseconds(const std::function<void()>& work) {
  wait();
  const Clock::time_point begin = Clock::now();
  work();
  return 1e3 * seconds_since(begin);
}

base::Json summary(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {{"least", values.front()}, {"median", values[values.size() / 2]}, {"most", values.back()}};
}

// Calls that would be made at a change of phase if anything had to be mapped.
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

// From the last kernel of one view to the first of the other, by the device's clock: keys and values own the whole
// arena in one phase, a hundred tensors in the other.
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
      tensors.push_back(arena.allocate(view, bytes, memory::Tag::kKv, "keys and values"));
    } else {
      for (int i = 0; i < 100; ++i)
        tensors.push_back(arena.allocate(view, bytes / 128, memory::Tag::kSavedActivations, "a tensor"));
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

// A region paused and resumed; `trims`: its extents leave the device, not only the region.
base::Json region(int64_t bytes, memory::Content content, bool trims) {
  device::CudaVmm vmm;
  device::CudaHostMemory host;
  memory::Ledger ledger;
  memory::ExtentPool pool(vmm, ledger, kExtentBytes);
  const bool keeps = content == memory::Content::kKeep;
  base::Json result = {{"gib", bytes / kGiB}};
  const Clock::time_point begin = Clock::now();
  memory::HostArena host_arena(host, keeps ? bytes : 0);
  if (keeps) result["pin_ms"] = 1e3 * seconds_since(begin);
  memory::Region region(
      pool, host_arena,
      {.name = "bench", .tag = memory::Tag::kKv, .bytes = bytes, .content = content, .synchronize = wait});
  TANDEM_CHECK(region.resume(), "too little memory");
  check_cuda(cudaMemset(region.data(), 7, static_cast<size_t>(bytes)));
  std::vector<double> pauses, resumes;
  const int64_t free_before = vmm.device_bytes().free;
  int64_t freed = 0;
  for (int i = 0; i < 7; ++i) {
    const double pause = milliseconds([&] {
      region.pause();
      if (trims) pool.trim();
    });
    freed = vmm.device_bytes().free - free_before;
    const double resume = milliseconds([&] { TANDEM_CHECK(region.resume(), "too little memory"); });
    if (i == 0) {
      result["first_pause_ms"] = pause;
      result["first_resume_ms"] = resume;
    } else {
      pauses.push_back(pause);
      resumes.push_back(resume);
    }
  }
  result["pause_ms"] = summary(pauses);
  result["resume_ms"] = summary(resumes);
  result["left_the_device_gib"] = static_cast<double>(freed) / kGiB;
  if (keeps) {
    unsigned char last = 0;
    check_cuda(cudaMemcpy(&last, region.data() + bytes - 1, 1, cudaMemcpyDeviceToHost));
    TANDEM_CHECK(last == 7, "the contents are lost");
  }
  return result;
}

// The limit of what keeps its contents: a plain copy between pinned memory and the device.
base::Json bus(int64_t bytes) {
  void *host = nullptr, *device = nullptr;
  check_cuda(cudaMallocHost(&host, static_cast<size_t>(bytes)));
  check_cuda(cudaMalloc(&device, static_cast<size_t>(bytes)));
  const auto copy = [&](void* to, const void* from) {
    std::vector<double> times;
    for (int i = 0; i < 5; ++i)
      times.push_back(milliseconds([&] {
        check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault));
        wait();
      }));
    return *std::min_element(times.begin(), times.end());
  };
  const double to_host = copy(host, device), to_device = copy(device, host);
  check_cuda(cudaFree(device));
  check_cuda(cudaFreeHost(host));
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  return {{"gib", bytes / kGiB},
          {"to_host_ms", to_host},
          {"to_device_ms", to_device},
          {"to_host_gb_per_s", 1e3 * gigabytes / to_host},
          {"to_device_gb_per_s", 1e3 * gigabytes / to_device}};
}

int run(int64_t large_gib, int64_t kept_gib) {
  check_cuda(cudaSetDevice(0));
  check_cuda(cudaFree(nullptr));
  const base::Json result = {{"phase_change", phase_change(large_gib * kGiB)},
                             {"discard", region(large_gib * kGiB, memory::Content::kDiscard, /*trims=*/false)},
                             {"discard_and_trim", region(large_gib * kGiB, memory::Content::kDiscard, /*trims=*/true)},
                             {"keep", region(kept_gib * kGiB, memory::Content::kKeep, /*trims=*/false)},
                             {"keep_and_trim", region(kept_gib * kGiB, memory::Content::kKeep, /*trims=*/true)},
                             {"bus", bus(kept_gib * kGiB)}};
  std::puts(base::dump_json(result).c_str());
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  try {
    return tandem::run(argc > 1 ? std::atoll(argv[1]) : 64, argc > 2 ? std::atoll(argv[2]) : 8);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "region_bench: %s\n", error.what());
    return 3;
  }
}
