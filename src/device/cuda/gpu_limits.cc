#include "device/cuda/gpu_limits.h"

#include <cuda_runtime_api.h>

namespace tandem::device::cuda {
namespace {

GpuLimits limits_of_current() {
  int device = 0;
  bool answers = cudaGetDevice(&device) == cudaSuccess;
  const auto ask = [&](cudaDeviceAttr attribute) {
    int value = 0;
    answers = answers && cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess;
    return int64_t{value};
  };
  const GpuLimits limits = {
      .capability = 10 * ask(cudaDevAttrComputeCapabilityMajor) + ask(cudaDevAttrComputeCapabilityMinor),
      .shared_bytes = ask(cudaDevAttrMaxSharedMemoryPerBlockOptin),
      .multiprocessors = ask(cudaDevAttrMultiProcessorCount),
      .multiprocessor_shared_bytes = ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor)};
  return answers ? limits : GpuLimits{};
}

}  // namespace

const GpuLimits& gpu_limits() {
  static const GpuLimits limits = limits_of_current();
  return limits;
}

}  // namespace tandem::device::cuda
