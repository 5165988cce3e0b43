// What the CUDA kernels take beside their arguments and results, for who calls them and for the memory plan. No torch
// and no CUDA.
#pragma once

#include <cstdint>

namespace tandem::device::cuda {

// Blocks whose partial sums of a weight's gradient are added up, for T rows: four on each of 132 multiprocessors.
constexpr int64_t num_partials(int64_t T) {
  constexpr int64_t kMost = 528;
  return T < kMost ? T : kMost;
}

// Bytes in which embedding_backward() sorts its ids.
constexpr int64_t embedding_backward_scratch(int64_t num_tokens) { return 8 * num_tokens; }

}  // namespace tandem::device::cuda
