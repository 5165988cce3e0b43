#include "rollout/paged_attention.h"

#include <ATen/ops/arange.h>

#include <algorithm>

namespace tandem::rollout {

void PagedAttention::set_batch(const device::AttentionRows& rows, const at::Tensor& slots_T) {
  rows_ = rows;
  slots_T_ = slots_T;
  const int64_t num_rows = slots_T.size(0);
  if (!all_tokens_.defined() || all_tokens_.size(0) < num_rows) {
    all_tokens_ = at::arange(std::max<int64_t>(num_rows, 256), slots_T.options());
  }
  tokens_T_ = all_tokens_.narrow(0, 0, num_rows);
}

at::Tensor PagedAttention::forward(int64_t layer, const at::Tensor& q_THK, const at::Tensor& k_TGK,
                                   const at::Tensor& v_TGK) {
  const at::Tensor& kv_layer = cache_.layer(layer);
  ops_.kv_append(kv_layer, k_TGK, v_TGK, tokens_T_, slots_T_);
  return ops_.paged_attention(q_THK, kv_layer, rows_, /*lse_TH=*/at::Tensor());
}

}  // namespace tandem::rollout
