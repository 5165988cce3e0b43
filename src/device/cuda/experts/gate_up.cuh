// Rows of gate and up side by side in a product, so that one thread has both results of a column and makes silu_mul() of
// them: shared by the kernels that multiply by such weights.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "device/cuda/vectors.cuh"

namespace tandem::device::cuda {

// Returns the row of a weight [N, K] = [gate | up] that is row `r` in turns of eight: eight of gate, those of up that
// belong to them, and so on. Rows past the last repeat it.
__device__ inline int gate_up_row(int r, int N) {
  const int column = min(r / 16 * 8 + r % 8, N / 2 - 1);
  return r % 16 < 8 ? column : N / 2 + column;
}

// Writes a column of a row's gate and up to `row` [N], unless that is null, and silu_mul() of them to activated_row.
__device__ inline void write_gate_up(__nv_bfloat16* row, __nv_bfloat16* activated_row, int column, int N, float gate,
                                     float up) {
  const __nv_bfloat16 rounded_gate = __float2bfloat16_rn(gate), rounded_up = __float2bfloat16_rn(up);
  if (row != nullptr) {
    row[column] = rounded_gate;
    row[N / 2 + column] = rounded_up;
  }
  const float g = __bfloat162float(rounded_gate);
  activated_row[column] = __float2bfloat16_rn(sigmoid(g) * g * __bfloat162float(rounded_up));
}

}  // namespace tandem::device::cuda
