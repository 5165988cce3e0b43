// Device memory that is not LibTorch's, for data by which kernels are compared before they are used.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/check.h"

namespace tandem::device::cuda {

class DeviceBuffer {
 public:
  // Throws EnvironmentError if the device has no such memory.
  explicit DeviceBuffer(int64_t bytes) {
    const cudaError_t error = cudaMalloc(&data_, static_cast<size_t>(bytes));
    TANDEM_ENV_CHECK(error == cudaSuccess, "the GPU has no", bytes,
                     "bytes in which to compare kernels:", cudaGetErrorString(error), "; give --device cpu");
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

}  // namespace tandem::device::cuda
