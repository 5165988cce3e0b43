// The CUDA driver as this folder's files call it: a device's primary context, and its errors as ours. No torch, and no
// CUDA runtime: the context is the one that the runtime uses too.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace tandem::device {

// Throws EnvironmentError unless `result` is CUDA_SUCCESS: call, bytes, the driver's words, remedy.
void check_driver(CUresult result, const char* call, int64_t bytes = 0);

// Holds the primary context of a device. EnvironmentError where there is no such device or no driver.
class PrimaryContext {
 public:
  explicit PrimaryContext(int ordinal);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;
  CUdevice device() const { return device_; }
  CUcontext get() const { return context_; }
  int attribute(CUdevice_attribute attribute) const;

 private:
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
};

// Makes the context current on this thread for as long as it lives: calls come from threads that never saw CUDA.
class CurrentContext {
 public:
  explicit CurrentContext(const PrimaryContext& context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
};

}  // namespace tandem::device
