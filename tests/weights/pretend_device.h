// Pretends to be an accelerator: LibTorch's device "privateuseone", with little memory of its own (which is the host's,
// but not the heap's) and an allocator that caches freed memory until it is told not to, as CUDA's does. It implements
// as much as loading weights takes. Copies between it and the host convert as LibTorch's do: in a buffer as large as
// the tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tandem::weights::pretend_device {

inline at::Device device() { return {at::DeviceType::PrivateUse1, 0}; }

// Resets all counts. No tensor may live there.
void reset(int64_t capacity_bytes);

int64_t live_bytes();
int64_t held_bytes();       // live and cached bytes
int64_t peak_live_bytes();  // maximum since reset()
int64_t num_conversions();  // number since reset() of copies between device and host whose dtypes differ

}  // namespace tandem::weights::pretend_device
