// The operations of device/ops.h on a GPU of NVIDIA's, compute capability 8.0 or newer: in bfloat16 by kernels of this
// folder and matrix products that are exact by certificate (linear_plans.h), whatever else (float32, widths that no
// kernel has) as ops_aten.h has it.
#pragma once

#include <memory>
#include <string>

#include "device/ops.h"

namespace tandem::device {

// `aten` computes what this does not. The current device is its device.
std::unique_ptr<Ops> make_cuda_ops(std::unique_ptr<Ops> aten, std::string name);

}  // namespace tandem::device
