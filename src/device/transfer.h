// Copies between the host and a backend's device. Where the device is the host, nothing is copied: each function
// returns its argument.
#pragma once

#include <ATen/core/Tensor.h>

namespace tandem::device {

inline bool is_host(at::Device device) { return device.is_cpu(); }
// Whether the host reads and writes the tensor's memory as its own.
inline bool is_on_host(const at::Tensor& tensor) { return tensor.is_cpu(); }

// Returns the same numbers in host memory, there when the call returns. An undefined tensor stays undefined.
at::Tensor to_host(const at::Tensor& tensor);

// Returns the same numbers on `device`, for work that is queued after. On a device that is not the host, `host` may
// change or go as soon as the call returns. An undefined tensor stays undefined.
at::Tensor to_device(const at::Tensor& host, at::Device device);

}  // namespace tandem::device
