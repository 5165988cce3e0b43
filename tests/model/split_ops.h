// Computes in one process with whole weights what tensor ranks compute together: each product whose sum the ranks split
// is computed in as many parts, which are added up in float32 in the order of the ranks and rounded once. Where the
// ranks share the rows of the residual stream, so is the gradient of a norm's weight.
#pragma once

#include <map>
#include <vector>

#include "model/config.h"
#include "tests/sim/forwarding_ops.h"
#include "weights/store.h"

namespace tandem::model {

class SplitOps final : public sim::ForwardingOps {
 public:
  using Tensor = at::Tensor;
  // Stands for as many tensor ranks as `order` has numbers, of a model over `store` whose configuration is `whole`.
  // Parts are added up in that order; the ranks' own is 0, 1, 2, ...
  SplitOps(const device::Ops& inner, const weights::WeightStore& store, const ModelConfig& whole,
           std::vector<int> order, bool sequence_parallel);

  Tensor linear_add(const Tensor& x_TK, const Tensor& w_NK, const Tensor& residual_TN) const override;
  Tensor linear_grad_input(const Tensor& dy_TN, const Tensor& w_NK, at::ScalarType out) const override;
  // The two below return rows that mean nothing, and keep the parts of them that sum_of_experts() adds up.
  Tensor linear_of_experts(const Tensor& x, device::RowsAre x_rows, const Tensor& w_XNK, const device::Routing& routing,
                           at::ScalarType out) const override;
  Tensor linear_of_experts_grad_input(const Tensor& dy, device::RowsAre dy_rows, const Tensor& w_XNK,
                                      const device::Routing& routing, at::ScalarType out) const override;
  Tensor sum_of_experts(const Tensor& y_PE, const Tensor& weights_TC, const device::Routing& routing,
                        const Tensor& residual_TE, at::ScalarType out) const override;
  WeightedSilu weighted_silu_backward(const Tensor& da_PF, const Tensor& gate_up_P2F,
                                      const device::Routing& routing) const override;
  Tensor rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const device::Norm& norm,
                           const Tensor& dweight) const override;
  Tensor qk_norm_rope_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& qkv,
                               const Tensor& q_norm, const Tensor& k_norm, const Tensor& positions,
                               const QkvShape& shape, const Tensor& dq_norm, const Tensor& dk_norm) const override;

 private:
  // Returns the sum rounded to `out`.
  Tensor sum(const std::vector<Tensor>& parts, at::ScalarType out) const;

  const std::vector<int> order_;
  const bool sequence_parallel_;
  // For each matrix that is cut by rows, by its address, the rows that each rank has of it, as indices.
  std::map<const void*, std::vector<Tensor>> rows_;
  mutable std::vector<Tensor> parts_of_places_;  // of the last product whose rows are added up by places
};

}  // namespace tandem::model
