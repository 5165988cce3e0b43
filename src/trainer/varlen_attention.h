// Attention of a packed micro-batch: the engine's kernel over a scratch cache that lives for one layer. Because it is
// the same kernel at the same tile, the trainer's log-probs are the engine's, bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include "device/ops.h"
#include "model/attention.h"
#include "trainer/packed_batch.h"

namespace tandem::trainer {

// Differentiable while gradients are on. Ops and batch are borrowed; both outlive this object and every graph built
// through it.
class VarlenAttention final : public model::Attention {
 public:
  VarlenAttention(const device::Ops& ops, const PackedBatch& batch) : ops_(ops), batch_(batch) {}

  at::Tensor forward(int64_t layer, int64_t window, const at::Tensor& q_THK, const at::Tensor& k_TGK,
                     const at::Tensor& v_TGK) override;

 private:
  const device::Ops& ops_;
  const PackedBatch& batch_;
  at::Tensor idle_cache_;  // cache reused from layer to layer while no graph needs it
};

}  // namespace tandem::trainer
