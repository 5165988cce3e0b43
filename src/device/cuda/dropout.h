// Dropout by the rule of device/dropout.h on the GPU. No torch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/dropout.h"

namespace tandem::device::cuda {

// Computes y [T, width] of x, as drop_row() does with the key row_keys[t] of each row. Element is float or
// __nv_bfloat16. Returns the error of the launch.
template <typename Element>
cudaError_t drop(const Dropout& dropout, const Element* x, const int64_t* row_keys, Element* y, int64_t T,
                 int64_t width, cudaStream_t stream);

}  // namespace tandem::device::cuda
