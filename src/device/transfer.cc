#include "device/transfer.h"

#include <ATen/ops/empty.h>

namespace tandem::device {

at::Tensor to_host(const at::Tensor& tensor) {
  if (!tensor.defined() || is_on_host(tensor)) return tensor;
  // Page-locked memory, which LibTorch keeps for the next call: a copy into other memory goes through it anyway, in
  // pieces, and takes several times as long.
  const at::Tensor host =
      at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()).pinned_memory(true));
  host.copy_(tensor);
  return host;
}

at::Tensor to_device(const at::Tensor& host, at::Device device) {
  if (!host.defined() || host.device() == device) return host;
  // The driver copies pageable memory before it returns, so nothing waits and nothing is overtaken.
  return host.to(device, host.scalar_type(), /*non_blocking=*/true);
}

}  // namespace tandem::device
