// Implements the operations of device/ops.h on an NVIDIA GPU of compute capability 8.0 or newer. In bfloat16 they are
// kernels of this folder and matrix products that are exact by certificate (linear_plans.h); everything else (float32,
// widths that no kernel has) is done by ops_aten.h.
#pragma once

#include <memory>
#include <string>

#include "device/ops.h"

namespace tandem::device {

// `aten` computes what these operations do not. They use its device, which is the current one.
std::unique_ptr<Ops> make_cuda_ops(std::unique_ptr<Ops> aten, std::string name);

}  // namespace tandem::device
