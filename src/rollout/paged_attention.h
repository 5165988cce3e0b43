// The engine's attention: keys and values of a batch go into the paged cache, and each row attends to what its
// sequence has there, in the same kernel that the trainer uses.
#pragma once

#include <ATen/core/Tensor.h>

#include "device/ops.h"
#include "model/attention.h"
#include "rollout/kv_cache.h"

namespace tandem::rollout {

class PagedAttention final : public model::Attention {
 public:
  // Both are borrowed. max_rows: of a forward.
  PagedAttention(const device::Ops& ops, const KvCache& cache, int64_t max_rows);

  // The rows of the next forward. slots_T int32: where each row's K and V go.
  void set_batch(const device::AttentionRows& rows, const at::Tensor& slots_T);
  // They are let go: between rollouts the device's memory is another's.
  void end_batch();

  at::Tensor forward(int64_t layer, const at::Tensor& q_THK, const at::Tensor& k_TGK, const at::Tensor& v_TGK) override;

 private:
  const device::Ops& ops_;
  const KvCache& cache_;
  device::AttentionRows rows_;
  at::Tensor slots_T_, tokens_T_;
  const at::Tensor all_tokens_;  // 0, 1, 2, ... [max_rows]
};

}  // namespace tandem::rollout
