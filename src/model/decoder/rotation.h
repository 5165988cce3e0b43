// The way of a layer from the product with its qkv matrix to q, k and v.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "device/ops.h"
#include "model/autograd.h"
#include "model/decoder/layer.h"
#include "model/linear.h"
#include "weights/store.h"

namespace tandem::model::decoder {

// Normalises q and k as the family does, puts the dims of each head of q and k into the order in which device::Ops
// rotates them, rotates them, and multiplies q by the layer's query_scale.
//
// Ops turns dims i and i + K/2. Where a family turns others, as neighbours or in a part of the head, the pairs are
// moved there first: q and k have the same order, so no product of the two changes. What is not rotated has frequencies
// of 0.
class Rotation {
 public:
  explicit Rotation(const Layer& layer);
  void bind(const weights::WeightsView& view);

  struct Rotated {
    device::Ops::Qkv qkv;
    at::Tensor normed_TN;  // what the norms of q and k read, which the backward needs; undefined without norms
  };
  Rotated forward(const at::Tensor& qkv_TN, const at::Tensor& positions_T) const;
  // Returns the gradient of qkv_TN, given those of q, k and v and what forward() gave, and adds those of the norms'
  // weights to the sink.
  at::Tensor backward(const Tensors& d, const at::Tensor& normed_TN, const at::Tensor& positions_T) const;

 private:
  // These are the norms of all heads together. The second overwrites dqkv_TN, the gradient of its result.
  at::Tensor normed_whole(const at::Tensor& qkv_TN) const;
  void normed_whole_backward(const at::Tensor& dqkv_TN, const at::Tensor& qkv_TN) const;
  // Returns the gradient of what Ops::qk_norm_rope() read.
  at::Tensor normed_heads_backward(const Tensors& d, const at::Tensor& qkv_TN, const at::Tensor& positions_T) const;
  // Returns a copy with the dims of q's and k's heads in Ops' order, or back from there.
  at::Tensor in_order(const at::Tensor& qkv_TN, bool back) const;

  const device::Ops& ops_;
  const TensorRanks& ranks_;
  const GradientSlot& sink_;
  const device::Ops::QkvShape shape_;
  const double query_scale_;
  const QkNorm norm_;
  const RotaryPairs pairs_;
  const int64_t rotary_dims_;
  const bool reorders_;
  const std::string q_norm_name_, k_norm_name_;
  at::Tensor q_norm_, k_norm_;  // [K], or [HK] and [GK]; undefined without norms
};

}  // namespace tandem::model::decoder
