// Plays accelerators on the host, as LibTorch sees them: devices of type PrivateUse1, called "npu", with little memory
// of their own and an allocator that keeps freed memory until it is told not to, as CUDA's does. Arithmetic is
// LibTorch's kernels for the CPU, on the same memory. A copy is the only way in and out (device_address.h). Work is
// done when the call returns.
//
// Float64 is refused, as on devices that lack it. Copies between a device and the host convert as LibTorch's do: in a
// buffer as large as the tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "device/allocator_hook.h"

namespace tandem::pretend_device {

constexpr int kNumDevices = 8;
constexpr int64_t kCapacityBytes = int64_t{8} << 30;  // of a device, until reset() says otherwise

inline at::Device device(int index = 0) { return {at::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)}; }

// Sets the capacity of the devices of this process, which share it, and resets all counts. No tensor may live there.
void reset(int64_t capacity_bytes);

// Plants a fault in the arithmetic of this process's devices:
//   "rows"      a row of a product has other bits where it is the 200th or a later one
//   "all_rows"  so has a square root's inverse where there is more than one row
//   "numbers"   that is wrong by a hundredth
//   ""          none
void plant(const std::string& fault);

int64_t live_bytes();
int64_t held_bytes();       // live and cached bytes
int64_t peak_live_bytes();  // maximum since reset()
int64_t num_conversions();  // number since reset() of copies between device and host whose dtypes differ

// Implements MemoryDriver::set_tensor_source and release_unused. What a source gives is none of the bytes above.
void set_tensor_source(device::AllocatorHook* source);
void release_unused();

}  // namespace tandem::pretend_device
