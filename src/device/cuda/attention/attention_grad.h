// Computes the gradient of attention on Hopper (compute capability 9.0), bfloat16, without torch: plain pointers into
// device memory and a stream. The same inputs give the same bits: attention_grad_work.h says in which order sums are
// added. Functions queue their work, wait for nothing, and return the error of the launch.
//
// Formulas, for a row with keys j: with p_j = exp(scale q k_j - lse), dp_j = dout v_j and d = sum(out dout),
//   ds_j = p_j (dp_j - d),  dv_j = sum of p_j dout,  dk_j = scale sum of ds_j q,  dq = scale sum of ds_j k_j
// over all rows that see key j, and over all keys that a row sees. p and ds are rounded to bfloat16 for the products,
// which add up in float32 (FlashAttention-2, arXiv:2307.08691, algorithm 2).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/cuda/attention/attention_grad_work.h"

namespace tandem::device::cuda {

// Returns whether the current device computes it for such heads.
bool computes_attention_grad(const AttentionHeads& heads);

struct AttentionGradCall {
  // Contiguous; rows T and expanded keys n as in ExpandedRows.
  const void *q_THK, *k_nGK, *v_nGK, *out_THK, *dout_THK;
  const float* lse_TH;  // natural logarithm
  void *dq_THK, *dk_nGK, *dv_nGK;
  int64_t num_rows = 0, num_keys = 0;
  AttentionHeads heads;
  int64_t window = 0;  // as in AttentionRows
  // The result of build_grad_work(), on the device.
  const GradSegment* segments;
  const GradTile* tiles;
  const GradItem* items;
  int64_t num_tiles = 0, num_items = 0;
  void* scratch;  // of GradScratch::bytes, aligned to 128
};
cudaError_t attention_grad(const AttentionGradCall& call, cudaStream_t stream);

}  // namespace tandem::device::cuda
