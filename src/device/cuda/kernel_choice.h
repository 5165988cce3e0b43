// The shared memory that kernels take, and which kernels compute on which GPU: pure functions of the GPU's limits,
// which the device is asked for (gpu_limits.h). No torch and no CUDA, so that tests ask about GPUs that are not there.
//
// Kernels that are not named here take at most 52 KiB of shared memory, whatever their sizes, and so run on every GPU
// of compute capability 8.0 and later, as those do whose bytes are at most kLeastSharedBytes. The compiler bounds the
// registers of each architecture's code by the threads of a block.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/cuda/attention/attention_grad_work.h"
#include "device/cuda/attention/attention_work.h"
#include "device/cuda/served_sizes.h"

namespace tandem::device::cuda {

struct GpuLimits {
  int64_t capability = 0;    // 10 * major + minor: 90 for compute capability 9.0; 0 where the GPU does not say
  int64_t shared_bytes = 0;  // the most shared memory that a block may take
  int64_t multiprocessors = 0, multiprocessor_shared_bytes = 0;
};

// The least that a block may take on any GPU of compute capability 8.0 or later: on 8.6, 8.9 and 12.0.
constexpr int64_t kLeastSharedBytes = 99 * 1024;

// The kernel of attention for all rows: the queries of a tile, and for each of four warps the keys and values of its
// part of a step, or in their place its sums.
constexpr int64_t attention_shared_bytes(int64_t head_dim) {
  const int64_t width = head_width(head_dim);
  const int64_t keys_and_values = 2 * (attention_step(head_dim) / kAttentionParts) * width * 2;
  const int64_t sums = kAttentionTile * width * 4 + kAttentionTile * 8;
  const int64_t warp = (std::max(keys_and_values, sums) + 127) / 128 * 128;
  return kAttentionTile * width * 2 + kAttentionParts * warp;
}

// Blocks of that kernel that a multiprocessor has at once, if its shared memory holds them. Three keep 192 KiB of keys
// and values in flight; the sums of 256 columns need more registers than three leave.
constexpr int64_t attention_blocks_at_once(int64_t head_dim) { return head_width(head_dim) == 256 ? 2 : 3; }
// Returns how many items and KV heads the GPU computes at once. It decides how items are cut, never a bit of a result.
constexpr int64_t attention_items_at_once(const GpuLimits& gpu, int64_t head_dim) {
  constexpr int64_t kReserved = 1024;  // bytes of each block's shared memory that the system takes
  const int64_t fit = gpu.multiprocessor_shared_bytes / (attention_shared_bytes(head_dim) + kReserved);
  return std::max<int64_t>(1, gpu.multiprocessors * std::min(fit, attention_blocks_at_once(head_dim)));
}

// The kernel of attention for few items has clusters of blocks, one for each part of the keys (compute capability 9.0).
// A block takes four units of keys and values, and their weights, or before them the queries.
constexpr int64_t few_attention_shared_bytes(int64_t head_dim) {
  constexpr int64_t kUnits = 4, kOthers = 1408;
  const int64_t width = head_width(head_dim), keys = attention_step(head_dim) / kAttentionParts;
  return kUnits * keys * width * 4 + kAttentionTile * 2 * std::max(width, kUnits * keys) + kOthers;
}
// `pairs` counts items times KV heads. It is the faster one while each block has a multiprocessor for itself.
constexpr bool runs_few_attention(const GpuLimits& gpu, int64_t head_dim, int64_t pairs) {
  return gpu.capability == 90 && few_attention_shared_bytes(head_dim) <= gpu.shared_bytes &&
         pairs * kAttentionParts <= gpu.multiprocessors;
}

// The kernel of attention for large items has the instructions of compute capability 9.0 (wgmma). It takes queries, two
// stages of 128 keys and of their values, folded sums in float32, and barriers, whose bytes are rounded up.
constexpr int64_t large_attention_shared_bytes(int64_t head_dim) {
  constexpr int64_t kStages = 2, kKeys = 128, kBarriers = 1024;
  const int64_t width = head_width(head_dim);
  return (kLargeTile + 2 * kStages * kKeys) * width * 2 + kLargeTile * width * 4 + kBarriers;
}
constexpr bool runs_large_attention(const GpuLimits& gpu, int64_t head_dim) {
  return gpu.capability == 90 && large_attention_shared_bytes(head_dim) <= gpu.shared_bytes;
}

// Returns the shared memory of the kernel of attention's gradient (attention_grad.h). It takes a block of keys and
// their values, two stages of rows and up to two of their output's gradients, two of what the products read of scores,
// parts of dq in float32, and what it knows of rows and items.
constexpr int64_t attention_grad_shared_bytes(int64_t head_dim) {
  constexpr int64_t kOthers = 3 * 1024;
  const int64_t width = head_width(head_dim), keys = grad_keys(head_dim), rows = width == 256 ? 3 : 4;
  const int64_t squares = width == 256 ? 4 : 2, dq = width == 256 ? 32 * 1024 : 2 * kGradRows * width * 4;
  return (2 * keys + rows * kGradRows) * width * 2 + squares * keys * kGradRows * 2 + dq + kOthers;
}
constexpr bool runs_attention_grad(const GpuLimits& gpu, int64_t head_dim) {
  return gpu.capability == 90 && supports_head_dim(head_dim) &&
         attention_grad_shared_bytes(head_dim) <= gpu.shared_bytes;
}

// The kernel of the gradient of experts' weights has the instructions of compute capability 9.0 too. It takes four
// pieces of 64 places, with 128 columns of one operand and 256 of the other, and what it knows of each expert.
constexpr int64_t experts_grad_weight_shared_bytes() {
  constexpr int64_t kPieces = 4, kPlaces = 64, kColumns = 128 + 256, kBarriers = 1024;
  return kPieces * kPlaces * kColumns * 2 + kMostExperts * 12 + kBarriers;
}
constexpr bool runs_experts_grad_weight(const GpuLimits& gpu) {
  return gpu.capability == 90 && experts_grad_weight_shared_bytes() <= gpu.shared_bytes;
}

// The kernel of products of few rows has the copy engine of compute capability 9.0. It takes at most so many bytes, for
// the weight on its way and the rows; they leave room for a block of attention, which may still run beside it.
constexpr int64_t kFewRowsSharedBytes = 152 * 1024;
// With codes of a quantised weight, whose table takes 32 KiB, it takes more where rows are long, and is alone then.
constexpr int64_t kFewRowsOfCodesSharedBytes = 220 * 1024;
constexpr bool runs_few_rows(const GpuLimits& gpu) {
  constexpr int64_t kBarriers = 4096;
  return gpu.capability == 90 && kFewRowsOfCodesSharedBytes + kBarriers <= gpu.shared_bytes;
}

// The kernel of products of some rows has the copy engine too. It takes at most so many bytes, for weight and rows on
// their way; no other block is beside it.
constexpr int64_t kSomeRowsSharedBytes = 192 * 1024;
constexpr bool runs_some_rows(const GpuLimits& gpu) {
  return gpu.capability == 90 && kSomeRowsSharedBytes <= gpu.shared_bytes;
}

// A tiling is the number of weight rows and of places that a block has, in the product of places with the weights of
// their experts. Of thirteen tilings those for few and for many places are within a few percent of the fastest from two
// tokens on; a single token has a kernel of its own (bench/results/experts.md).
enum class ExpertsTiling : uint8_t { kOneToken, kFewPlaces, kManyPlaces };
// The terms of a sum are a multiple of this where a single token's kernel serves.
constexpr int64_t kOneTokenDepth = 128;

// The numbers of such a product: K terms of a sum, and whether the weights are transposed.
struct ExpertsSizes {
  int64_t num_experts = 0, num_places = 0, num_chosen = 0, K = 0;
  bool transposed = false;
};

// A block's pieces of weights and of places; for a single token the whole row of K terms, and pieces of weights.
constexpr int64_t experts_shared_bytes(ExpertsTiling tiling, int64_t K) {
  constexpr int64_t kDepth = 64, kFew = (64 + 16) * 4, kMany = (128 + 64) * 3, kOne = 4 * 4 * 16;
  switch (tiling) {
    case ExpertsTiling::kOneToken: return (K + kOne * kOneTokenDepth) * 2;
    case ExpertsTiling::kFewPlaces: return kFew * kDepth * 2;
    case ExpertsTiling::kManyPlaces: break;
  }
  return kMany * kDepth * 2;
}

// Returns the fastest tiling that the GPU has room for. All give the same bits.
constexpr ExpertsTiling experts_tiling(const ExpertsSizes& p, const GpuLimits& gpu) {
  const bool is_one_token = p.num_places == p.num_chosen && !p.transposed && p.K % kOneTokenDepth == 0;
  if (is_one_token && experts_shared_bytes(ExpertsTiling::kOneToken, p.K) <= gpu.shared_bytes) {
    return ExpertsTiling::kOneToken;
  }
  return p.num_places <= 8 * p.num_experts ? ExpertsTiling::kFewPlaces : ExpertsTiling::kManyPlaces;
}

}  // namespace tandem::device::cuda
