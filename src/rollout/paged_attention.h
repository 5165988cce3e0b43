// The engine's attention: it writes keys and values of a batch into the paged KV cache, and each row attends to its
// sequence there, in the same kernel that the trainer uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "device/ops.h"
#include "model/attention.h"
#include "rollout/kv_cache.h"

namespace tandem::rollout {

class PagedAttention final : public model::Attention {
 public:
  // Ops and cache are borrowed. max_rows is the most rows of a forward.
  PagedAttention(const device::Ops& ops, const KvCache& cache, int64_t max_rows);

  // Sets the rows of the next forward, by kind of KV block. slots_T int32 has the slots of each row's K and V.
  void set_batch(const std::vector<device::AttentionRows>& rows, const std::vector<at::Tensor>& slots_T);
  // Releases the batch: between rollouts the device's memory belongs to training.
  void end_batch();

  at::Tensor forward(int64_t layer, int64_t window, const at::Tensor& q_THK, const at::Tensor& k_TGK,
                     const at::Tensor& v_TGK) override;

 private:
  const device::Ops& ops_;
  const KvCache& cache_;
  std::vector<device::AttentionRows> rows_;  // by kind of KV block
  std::vector<at::Tensor> slots_T_;
  at::Tensor tokens_T_;
  const at::Tensor all_tokens_;  // 0, 1, 2, ... [max_rows]
};

}  // namespace tandem::rollout
