// The operations of experts of CudaOps (device/experts.h, device/ops.h): kernels over tensors where they serve, else
// those of device/experts_aten.h.
//
// A product of bfloat16 rows has one of three kernels by how many places there are; all have the bits of
// ordered_product(), as LinearPlans' products have. Only linear_grad_weight(), and what falls to experts_aten, needs
// the experts' numbers of places on the host. One thread at a time.
#pragma once

#include "device/cuda/grouped_products.h"
#include "device/experts.h"
#include "device/ops.h"

namespace tandem::device {

class CudaExperts {
 public:
  // Products of one expert are those of `ops`, which outlives this.
  explicit CudaExperts(const Ops& ops) : ops_(ops) {}

  // Returns whether forwards of such a bfloat16 model wait for the host nowhere: Ops::can_record_experts().
  static bool can_record(int64_t num_experts, int64_t chosen, int64_t hidden, int64_t width);

  Routing route(const Tensor& logits_TX, const RouteRule& rule) const;
  Tensor route_backward(const Tensor& dweights_TC, const Tensor& logits_TX, const Routing& routing,
                        const RouteRule& rule, at::ScalarType out) const;
  Tensor linear(const Tensor& x, RowsAre x_rows, const Tensor& w_XNK, const Routing& routing, at::ScalarType out);
  Tensor linear_grad_input(const Tensor& dy, RowsAre dy_rows, const Tensor& w_XNK, const Routing& routing,
                           at::ScalarType out);
  void linear_grad_weight(const Tensor& dy, RowsAre dy_rows, const Tensor& x, RowsAre x_rows, const Tensor& dw_XNK,
                          const Routing& routing, GradientUse use) const;
  Tensor sum(const Tensor& y_PE, const Tensor& weights_TC, const Routing& routing, const Tensor& residual_TE,
             at::ScalarType out) const;
  Ops::ExpertsMlp mlp(const Tensor& x_TE, const Tensor& gate_up_X2FE, const Tensor& down_XEF, const Routing& routing,
                      const Tensor& residual_TE, at::ScalarType out, bool keeps_gate_up) const;
  Ops::WeightedSilu weighted_silu_backward(const Tensor& da_PF, const Tensor& gate_up_P2F,
                                           const Routing& routing) const;

 private:
  const Ops& ops_;
  cuda::GroupedProducts grouped_;
};

}  // namespace tandem::device
