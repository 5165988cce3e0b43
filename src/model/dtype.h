// The dtype of a configuration as LibTorch names it.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/config.h"

namespace tandem::model {

inline at::ScalarType scalar_type(Dtype dtype) { return dtype == Dtype::kFloat32 ? at::kFloat : at::kBFloat16; }

}  // namespace tandem::model
