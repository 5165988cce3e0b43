#include "model/decoder/rotation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "model/decoder/rope.h"

namespace tandem::model::decoder {

using at::Tensor;

namespace {

device::Ops::QkvShape qkv_shape(const ModelConfig& config, const Family& family, const LayerAttention& attention) {
  return {.num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .rope_theta = attention.rope_theta,
          .eps = config.rms_norm_eps,
          .rope_factors = attention.rope_factors,
          .norm_offset = family.norm_offset};
}

}  // namespace

Rotation::Rotation(const Layer& layer)
    : ops_(layer.ops),
      ranks_(layer.stream.ranks()),
      sink_(layer.sink),
      shape_(qkv_shape(layer.config, layer.family, layer.config.attention_of(layer.index))),
      query_scale_(layer.config.attention_of(layer.index).query_scale),
      norm_(layer.family.qk_norm),
      pairs_(layer.family.rotary_pairs),
      rotary_dims_(layer.config.rotated_dims()),
      reorders_(reorders_heads(layer.config, layer.family)),
      q_norm_name_(layer.packed_name("q_norm")),
      k_norm_name_(layer.packed_name("k_norm")) {}

void Rotation::bind(const weights::WeightsView& view) {
  if (norm_ == QkNorm::kNone) return;
  q_norm_ = view[q_norm_name_];
  k_norm_ = view[k_norm_name_];
}

Rotation::Rotated Rotation::forward(const Tensor& qkv_TN, const Tensor& positions_T) const {
  Rotated result;
  Tensor x_TN = norm_ == QkNorm::kWhole ? normed_whole(qkv_TN) : qkv_TN;
  if (reorders_) x_TN = in_order(x_TN, /*back=*/false);
  if (norm_ == QkNorm::kHead) {
    result.qkv = ops_.qk_norm_rope(x_TN, q_norm_, k_norm_, positions_T, shape_);
    result.normed_TN = x_TN;
  } else {
    result.qkv = ops_.rope(x_TN, positions_T, shape_);
    if (norm_ == QkNorm::kWhole) result.normed_TN = qkv_TN;
  }
  if (query_scale_ != 1.0) result.qkv.q_THK.mul_(query_scale_);
  return result;
}

Tensor Rotation::backward(const Tensors& d, const Tensor& normed_TN, const Tensor& positions_T) const {
  const Tensors scaled = {query_scale_ != 1.0 ? d[0] * query_scale_ : d[0], d[1], d[2]};
  Tensor dqkv_TN = norm_ == QkNorm::kHead ? normed_heads_backward(scaled, normed_TN, positions_T)
                                          : ops_.rope_backward(scaled[0], scaled[1], scaled[2], positions_T, shape_);
  if (reorders_) dqkv_TN = in_order(dqkv_TN, /*back=*/true);
  if (norm_ == QkNorm::kWhole) normed_whole_backward(dqkv_TN, normed_TN);
  return dqkv_TN;
}

Tensor Rotation::normed_whole(const Tensor& qkv_TN) const {
  Tensor result_TN = at::empty_like(qkv_TN);
  int64_t begin = 0;
  for (const Tensor& weight : {q_norm_, k_norm_}) {
    const int64_t width = weight.size(0);
    result_TN.narrow(1, begin, width)
        .copy_(ops_.rms_norm(qkv_TN.narrow(1, begin, width).contiguous(), weight, shape_.norm()));
    begin += width;
  }
  const int64_t width_of_v = qkv_TN.size(1) - begin;
  result_TN.narrow(1, begin, width_of_v).copy_(qkv_TN.narrow(1, begin, width_of_v));
  return result_TN;
}

void Rotation::normed_whole_backward(const Tensor& dqkv_TN, const Tensor& qkv_TN) const {
  int64_t begin = 0;
  for (const auto& [name, weight] : {std::pair(&q_norm_name_, q_norm_), std::pair(&k_norm_name_, k_norm_)}) {
    const int64_t width = weight.size(0);
    const Tensor dy_TW = dqkv_TN.narrow(1, begin, width), x_TW = qkv_TN.narrow(1, begin, width);
    dy_TW.copy_(ops_.rms_norm_backward(dy_TW.contiguous(), x_TW.contiguous(), weight, shape_.norm(),
                                       sink_(*name).accumulator()));
    begin += width;
  }
}

// A norm has one weight for all heads, and each rank the gradient of its own heads: they are added up in float32 before
// anything else, so that all ranks add the same to what is there.
Tensor Rotation::normed_heads_backward(const Tensors& d, const Tensor& qkv_TN, const Tensor& positions_T) const {
  const auto backward = [&](const Tensor& dq_norm_K, const Tensor& dk_norm_K) {
    return ops_.qk_norm_rope_backward(d[0], d[1], d[2], qkv_TN, q_norm_, k_norm_, positions_T, shape_, dq_norm_K,
                                      dk_norm_K);
  };
  if (ranks_.is_alone()) return backward(sink_(q_norm_name_).accumulator(), sink_(k_norm_name_).accumulator());
  const Tensor own_2K = at::zeros({2, shape_.head_dim}, qkv_TN.options().dtype(at::kFloat));
  Tensor dqkv_TN = backward(own_2K[0], own_2K[1]);
  const Tensor sum_2K = ranks_.sum(own_2K, /*residual=*/{}, at::kFloat);
  sink_.add(q_norm_name_, sum_2K[0]);
  sink_.add(k_norm_name_, sum_2K[1]);
  return dqkv_TN;
}

Tensor Rotation::in_order(const Tensor& qkv_TN, bool back) const {
  const int64_t K = shape_.head_dim, R = rotary_dims_, heads = shape_.num_heads + shape_.num_kv_heads;
  Tensor result_TN = at::empty_like(qkv_TN);
  const auto heads_of = [&](const Tensor& x_TN) { return x_TN.narrow(1, 0, heads * K).view({x_TN.size(0), heads, K}); };
  const Tensor family_THK = heads_of(back ? result_TN : qkv_TN), ops_THK = heads_of(back ? qkv_TN : result_TN);
  const auto move = [&](const Tensor& of_family, const Tensor& of_ops) {
    (back ? of_family : of_ops).copy_(back ? of_ops : of_family);
  };
  // Halves of the rotated dims go to the beginnings of the halves of the head, and what is left behind them.
  const bool neighbours = pairs_ == RotaryPairs::kNeighbours;
  for (const int64_t half : {0, 1}) {
    const Tensor turned = neighbours ? family_THK.slice(2, half, R, 2) : family_THK.narrow(2, half * R / 2, R / 2);
    move(turned, ops_THK.narrow(2, half * K / 2, R / 2));
    move(family_THK.narrow(2, R + half * (K - R) / 2, (K - R) / 2),
         ops_THK.narrow(2, half * K / 2 + R / 2, (K - R) / 2));
  }
  const int64_t begin_of_v = heads * K, width_of_v = qkv_TN.size(1) - begin_of_v;
  result_TN.narrow(1, begin_of_v, width_of_v).copy_(qkv_TN.narrow(1, begin_of_v, width_of_v));
  return result_TN;
}

}  // namespace tandem::model::decoder
