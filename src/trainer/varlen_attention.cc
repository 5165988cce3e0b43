#include "trainer/varlen_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "model/autograd.h"

namespace tandem::trainer {
namespace {

at::Tensor make_cache(int64_t num_blocks, const at::Tensor& k_TGK) {
  // The cache begins as zeros: slots past a sequence's end are weighed with 0, and 0 times arbitrary memory may be NaN.
  return at::zeros({num_blocks, 2, k_TGK.size(1), k_TGK.size(2) * device::kBlockTokens}, k_TGK.options());
}

}  // namespace

// Backward reads the cache, so keys and values themselves are not kept.
at::Tensor VarlenAttention::forward(int64_t /*layer*/, int64_t window, const at::Tensor& q_THK, const at::Tensor& k_TGK,
                                    const at::Tensor& v_TGK) {
  device::AttentionRows rows = batch_.attention;
  rows.window = window;
  if (!c10::GradMode::is_enabled()) {
    // Every layer writes the same slots, so the next one may overwrite them.
    if (!idle_cache_.defined()) {
      idle_cache_ = make_cache(batch_.num_kv_blocks, k_TGK);
    }
    ops_.kv_append(idle_cache_, k_TGK, v_TGK, batch_.kv_tokens, batch_.kv_slots);
    return ops_.paged_attention(q_THK, idle_cache_, rows, at::Tensor());
  }
  return model::differentiable({q_THK, k_TGK, v_TGK}, [&] {
    const at::Tensor q = q_THK.detach();
    const at::Tensor cache = make_cache(batch_.num_kv_blocks, k_TGK);
    ops_.kv_append(cache, k_TGK, v_TGK, batch_.kv_tokens, batch_.kv_slots);
    const at::Tensor lse_TH = at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
    at::Tensor out_THK = ops_.paged_attention(q, cache, rows, lse_TH);

    auto backward = [&ops = ops_, rows, q, cache, lse_TH,
                     out = out_THK.detach()](const model::Tensors& douts) -> model::Tensors {
      device::Ops::AttentionGrad d = ops.attention_backward(douts[0], q, out, lse_TH, cache, rows);
      return {std::move(d.dq_THK), std::move(d.dk_TGK), std::move(d.dv_TGK)};
    };
    return model::Piece{{std::move(out_THK)}, std::move(backward)};
  })[0];
}

}  // namespace tandem::trainer
