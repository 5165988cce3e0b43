// Gives the files of this folder the CUDA driver, loaded at run time, so that a build without a driver loads there too;
// a device's primary context; and its errors as ours. No torch, and no CUDA runtime: the context is the one that the
// runtime uses too.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace tandem::device {

// Members are named as in <cuda.h>; a function that is a macro there for a version has the version in its name.
#define TANDEM_CUDA_DRIVER_CALLS(X) \
  X(cuCtxPopCurrent)                \
  X(cuCtxPushCurrent)               \
  X(cuDeviceGet)                    \
  X(cuDeviceGetAttribute)           \
  X(cuDevicePrimaryCtxRelease)      \
  X(cuDevicePrimaryCtxRetain)       \
  X(cuGetErrorName)                 \
  X(cuGetErrorString)               \
  X(cuInit)                         \
  X(cuMemAddressFree)               \
  X(cuMemAddressReserve)            \
  X(cuMemCreate)                    \
  X(cuMemGetAddressRange)           \
  X(cuMemGetAllocationGranularity)  \
  X(cuMemGetInfo)                   \
  X(cuMemHostRegister)              \
  X(cuMemHostUnregister)            \
  X(cuMemMap)                       \
  X(cuMemRelease)                   \
  X(cuMemSetAccess)                 \
  X(cuMemUnmap)                     \
  X(cuMemcpyDtoHAsync)              \
  X(cuMemcpyHtoDAsync)              \
  X(cuMemsetD32Async)               \
  X(cuStreamBatchMemOp)             \
  X(cuStreamCreate)                 \
  X(cuStreamDestroy)                \
  X(cuStreamSynchronize)            \
  X(cuStreamWriteValue32)
struct DriverCalls {
#define TANDEM_MEMBER(call) decltype(&::call) call = nullptr;
  TANDEM_CUDA_DRIVER_CALLS(TANDEM_MEMBER)
#undef TANDEM_MEMBER
};
// Throws EnvironmentError where there is no driver.
const DriverCalls& driver();

// Throws EnvironmentError unless `result` is CUDA_SUCCESS. The message has call, bytes, the driver's words and a
// remedy.
void check_driver(CUresult result, const char* call, int64_t bytes = 0);

// An address as the driver's calls take it.
inline CUdeviceptr pointer(const std::byte* address) { return reinterpret_cast<CUdeviceptr>(address); }

// Holds the primary context of a device. Throws EnvironmentError where there is no such device or no driver.
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

// Makes the context current on this thread for as long as it lives: calls may come from threads that never used CUDA.
class CurrentContext {
 public:
  explicit CurrentContext(const PrimaryContext& context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
};

}  // namespace tandem::device
