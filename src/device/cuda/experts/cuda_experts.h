// The operations of experts of CudaOps (device/experts.h, device/ops.h): kernels over tensors where they serve, else
// those of device/experts_aten.h.
//
// A product of bfloat16 rows has one of three kernels by how many places there are; all have the bits of
// ordered_product(), as LinearPlans' products have. The experts' numbers of places are needed on the host only by what
// falls to experts_aten, and by linear_grad_weight() on GPUs without the kernel of experts_grad_weight.h. One thread at
// a time.
#pragma once

#include "device/cuda/experts/experts_grad_weight.h"
#include "device/cuda/experts/grouped_products.h"
#include "device/experts.h"
#include "device/ops.h"

namespace tandem::device {

class CudaExperts {
 public:
  // Products of one expert are those of `ops`, which outlives this.
  explicit CudaExperts(const Ops& ops) : ops_(ops) {}

  Routing route(const Tensor& logits_TX, const RouteRule& rule) const;
  Tensor route_backward(const Tensor& dweights_TC, const Tensor& logits_TX, const Routing& routing,
                        const RouteRule& rule, at::ScalarType out) const;
  Tensor linear(const Tensor& x, RowsAre x_rows, const Tensor& w_XNK, const Routing& routing, at::ScalarType out);
  Tensor linear_grad_input(const Tensor& dy, RowsAre dy_rows, const Tensor& w_XNK, const Routing& routing,
                           at::ScalarType out);
  // Few places an expert are multiplied with the codes themselves. Else bfloat16 weights are made first, of the experts
  // that have places: products read no others.
  Tensor linear_quantised(const Tensor& x, RowsAre x_rows, const QuantisedMatrix& w_XNK, const Routing& routing,
                          at::ScalarType out);
  Tensor linear_quantised_grad_input(const Tensor& dy, RowsAre dy_rows, const QuantisedMatrix& w_XNK,
                                     const Routing& routing, at::ScalarType out);
  void linear_grad_weight(const Tensor& dy, RowsAre dy_rows, const Tensor& x, RowsAre x_rows, const Tensor& dw_XNK,
                          const Routing& routing, GradientUse use) const;
  Tensor sum(const Tensor& y_PE, const Tensor& weights_TC, const Routing& routing, const Tensor& residual_TE,
             at::ScalarType out) const;
  Ops::ExpertsMlp mlp(const Tensor& x_TE, const Tensor& gate_up_X2FE, const Tensor& down_XEF, const Routing& routing,
                      const Tensor& residual_TE, at::ScalarType out, bool keeps_gate_up) const;
  void results(const Tensor& x_TE, const Tensor& gate_up_X2FE, const Tensor& down_XEF, const Routing& routing,
               ExpertRange range, const Tensor& y_PE) const;
  Ops::WeightedSilu weighted_silu_backward(const Tensor& da_PF, const Tensor& gate_up_P2F,
                                           const Routing& routing) const;

 private:
  const Ops& ops_;
  const bool has_grad_weight_kernel_ = cuda::has_experts_grad_weight();
  cuda::GroupedProducts grouped_;
};

}  // namespace tandem::device
