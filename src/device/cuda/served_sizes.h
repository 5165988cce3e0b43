// The sizes that the CUDA kernels serve, for their callers and for the memory plan; the operations of ops_aten serve
// all others. No torch and no CUDA.
#pragma once

#include <cstdint>

namespace tandem::device::cuda {

// The width is the number of elements of a row, a norm's weight, or a head.
constexpr bool supports_width(int64_t width) { return width > 0 && width % 8 == 0; }

// The sizes of heads that the kernels of attention, of the rotation and of the norms on queries and keys serve.
constexpr bool supports_head_dim(int64_t head_dim) { return supports_width(head_dim) && head_dim <= 256; }
// These kernels compute a head of 64, 128 or 256 columns. A smaller head has zeros in the columns that it lacks, on
// chip alone: they change no bit of its products, since they add exact zeros at the end of a sum of finite numbers.
constexpr int64_t head_width(int64_t head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256; }

// The kernels of routing keep a row of logits in the registers of a warp, and a token's chosen experts in its lanes.
constexpr int64_t kMostExperts = 512, kMostChosen = 32;
constexpr bool supports_routing(int64_t num_experts, int64_t num_chosen) {
  return num_experts <= kMostExperts && num_chosen <= kMostChosen && num_chosen <= num_experts;
}

// Returns whether a forward of a bfloat16 model with such experts, whose rows have `hidden` elements outside and
// `width` inside of an expert, waits for the host nowhere.
constexpr bool can_record_experts(int64_t num_experts, int64_t num_chosen, int64_t hidden, int64_t width) {
  return supports_routing(num_experts, num_chosen) && supports_width(hidden) && supports_width(width);
}

}  // namespace tandem::device::cuda
