// Rows of a table by token id, their gradient, and the tokens that an earlier step has drawn, on the GPU. No torch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/scratch.h"

namespace tandem::device::cuda {

// The rows of a whole table of V that a table [R, E] has.
struct TableRows {
  int64_t first, count;  // first row, and number of rows R
};

// Writes out [T, E] = rows ids [T] of the whole table, zeros where `table` has not that row. A negative id, which a
// draw from a row that was not finite can leave, reads row 0. Element is float or __nv_bfloat16.
template <typename Element>
cudaError_t embedding(const Element* table, TableRows rows, const int32_t* ids, int64_t num_tokens, int64_t width,
                      Element* out, cudaStream_t stream);

// Computes dtable[ids[t] - rows.first] += dy[t] for t = 0, 1, ..: float32 additions in order of t, so the bits of a
// loop. There are no atomics. Ids of rows that dtable has not are ignored. dy is [T, E], ids [T] in 0..V-1, dtable [R,
// E] float32, and scratch has embedding_backward_scratch(T) bytes at a multiple of 8.
// The ids are sorted by counting, T^2 comparisons: some 10 us for 8,448 tokens, 0.3 ms for 65,536.
template <typename Element>
cudaError_t embedding_backward(const Element* dy, TableRows rows, const int32_t* ids, int64_t num_tokens, int64_t width,
                               float* dtable, void* scratch, cudaStream_t stream);

// Replaces ids[t] < 0 by drawn[-1 - ids[t]]; ids is [T].
cudaError_t take_drawn(int32_t* ids, int64_t num_tokens, const int32_t* drawn, cudaStream_t stream);

}  // namespace tandem::device::cuda
