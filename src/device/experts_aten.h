// The operations of experts (device/experts.h, device/ops.h) in plain ATen, written to be read beside the contract.
// Matrix products are Ops::linear() and its gradients, an expert at a time, so a place's row has the bits of a row of
// linear(). They need the experts' numbers of places on the host, which waits for the device.
#pragma once

#include <ATen/core/Tensor.h>

#include "device/experts.h"
#include "device/ops.h"

namespace tandem::device::experts_aten {

Routing route(const at::Tensor& logits_TX, const RouteRule& rule);
at::Tensor route_backward(const at::Tensor& dweights_TC, const at::Tensor& logits_TX, const Routing& routing,
                          const RouteRule& rule, at::ScalarType out);
// linear(), linear_grad_input() and linear_grad_weight() multiply with `ops`.
at::Tensor linear(const Ops& ops, const at::Tensor& x, RowsAre x_rows, const at::Tensor& w_XNK, const Routing& routing,
                  at::ScalarType out);
at::Tensor linear_grad_input(const Ops& ops, const at::Tensor& dy, RowsAre dy_rows, const at::Tensor& w_XNK,
                             const Routing& routing, at::ScalarType out);
void linear_grad_weight(const Ops& ops, const at::Tensor& dy, RowsAre dy_rows, const at::Tensor& x, RowsAre x_rows,
                        const at::Tensor& dw_XNK, const Routing& routing, GradientUse use);
at::Tensor sum(const at::Tensor& y_PE, const at::Tensor& weights_TC, const Routing& routing,
               const at::Tensor& residual_TE, at::ScalarType out);
Ops::WeightedSilu weighted_silu_backward(const at::Tensor& da_PF, const at::Tensor& gate_up_P2F,
                                         const Routing& routing);

}  // namespace tandem::device::experts_aten
