#include "rollout/paged_attention.h"

#include <ATen/ops/arange.h>

#include "base/check.h"

namespace tandem::rollout {

PagedAttention::PagedAttention(const device::Ops& ops, const KvCache& cache, int64_t max_rows)
    : ops_(ops), cache_(cache), all_tokens_(at::arange(max_rows, at::TensorOptions(at::kInt).device(ops.device()))) {}

void PagedAttention::set_batch(const std::vector<device::AttentionRows>& rows, const std::vector<at::Tensor>& slots_T) {
  rows_ = rows;
  slots_T_ = slots_T;
  const int64_t num_rows = slots_T.front().size(0);
  TANDEM_CHECK(num_rows <= all_tokens_.size(0), num_rows, "rows");
  tokens_T_ = all_tokens_.narrow(0, 0, num_rows);
}

void PagedAttention::end_batch() {
  rows_.clear();
  slots_T_.clear();
  tokens_T_ = at::Tensor();
}

at::Tensor PagedAttention::forward(int64_t layer, int64_t window, const at::Tensor& q_THK, const at::Tensor& k_TGK,
                                   const at::Tensor& v_TGK) {
  const at::Tensor& kv_layer = cache_.layer(layer);
  const size_t kind = cache_.layout().layers[static_cast<size_t>(layer)].kind;
  device::AttentionRows& rows = rows_[kind];
  ops_.kv_append(kv_layer, k_TGK, v_TGK, tokens_T_, slots_T_[kind]);
  rows.window = window;
  return ops_.paged_attention(q_THK, kv_layer, rows, /*lse_TH=*/at::Tensor());
}

}  // namespace tandem::rollout
