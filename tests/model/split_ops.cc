#include "tests/model/split_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "base/check.h"
#include "model/registry.h"
#include "tests/model/model_parts.h"
#include "tests/model/sequence_attention.h"

namespace tandem::model {

using at::Tensor;

SplitOps::SplitOps(const device::Ops& inner, const weights::WeightStore& store, const ModelConfig& whole,
                   std::vector<int> order, bool sequence_parallel)
    : ForwardingOps(inner), order_(std::move(order)), sequence_parallel_(sequence_parallel) {
  for (const weights::PackedTensor& packed : store.layout().tensors) {
    if (packed.shape.size() != 2) continue;
    for (int rank = 0; rank < static_cast<int>(order_.size()); ++rank) {
      const ModelConfig part = shard_of(whole, {.rank = rank, .size = static_cast<int>(order_.size())});
      const weights::PackedTensor part_packed = build_layout(part).find(packed.name);
      if (part_packed.is_whole() || part_packed.shape[1] != packed.shape[1]) continue;  // cut by columns, or not at all
      // The packed tensor's own row numbers, cut as its rows are.
      const Tensor numbers = int32_range(0, packed.shape[0]).unsqueeze(1).expand(packed.shape);
      rows_[store.tensor(packed.name).const_data_ptr()].push_back(part_of(numbers, packed, part_packed).select(1, 0));
    }
  }
}

Tensor SplitOps::sum(const std::vector<Tensor>& parts, at::ScalarType out) const {
  Tensor total = parts[static_cast<size_t>(order_[0])].clone();
  for (size_t i = 1; i < order_.size(); ++i) total = total + parts[static_cast<size_t>(order_[i])];
  return total.to(out);
}

Tensor SplitOps::linear_add(const Tensor& x_TK, const Tensor& w_NK, const Tensor& residual_TN) const {
  TANDEM_CHECK(!rows_.contains(w_NK.const_data_ptr()), "a matrix that is cut by rows, added to a residual");
  const int64_t num_ranks = std::ssize(order_), width = x_TK.size(1) / num_ranks;
  std::vector<Tensor> parts;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    parts.push_back(inner_.linear(x_TK.narrow(1, rank * width, width).contiguous(),
                                  w_NK.narrow(1, rank * width, width).contiguous(), at::kFloat));
  }
  return inner_.add(residual_TN, sum(parts, residual_TN.scalar_type()));
}

Tensor SplitOps::linear_grad_input(const Tensor& dy_TN, const Tensor& w_NK, at::ScalarType out) const {
  const auto cut = rows_.find(w_NK.const_data_ptr());
  if (cut == rows_.end()) return inner_.linear_grad_input(dy_TN, w_NK, out);
  std::vector<Tensor> parts;
  for (const Tensor& rows : cut->second)
    parts.push_back(inner_.linear_grad_input(dy_TN.index_select(1, rows), w_NK.index_select(0, rows), at::kFloat));
  return sum(parts, out);
}

Tensor SplitOps::linear_of_experts(const Tensor& x, device::RowsAre x_rows, const Tensor& w_XNK,
                                   const device::Routing& routing, at::ScalarType out) const {
  if (rows_.contains(w_XNK.const_data_ptr())) return inner_.linear_of_experts(x, x_rows, w_XNK, routing, out);
  const int64_t num_ranks = std::ssize(order_), width = x.size(1) / num_ranks;
  parts_of_places_.clear();
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    parts_of_places_.push_back(inner_.linear_of_experts(x.narrow(1, rank * width, width).contiguous(), x_rows,
                                                        w_XNK.narrow(1, rank * width, width).contiguous(), routing,
                                                        at::kFloat));
  }
  return parts_of_places_.front();
}

Tensor SplitOps::linear_of_experts_grad_input(const Tensor& dy, device::RowsAre dy_rows, const Tensor& w_XNK,
                                              const device::Routing& routing, at::ScalarType out) const {
  const auto cut = rows_.find(w_XNK.const_data_ptr());
  if (cut == rows_.end()) return inner_.linear_of_experts_grad_input(dy, dy_rows, w_XNK, routing, out);
  parts_of_places_.clear();
  for (const Tensor& rows : cut->second) {
    const Tensor columns = rows.narrow(0, 0, rows.size(0) / routing.num_experts());  // the rows of expert 0
    parts_of_places_.push_back(inner_.linear_of_experts_grad_input(dy.index_select(1, columns), dy_rows,
                                                                   w_XNK.index_select(0, rows), routing, at::kFloat));
  }
  return parts_of_places_.front();
}

Tensor SplitOps::sum_of_experts(const Tensor& /*y_PE*/, const Tensor& weights_TC, const device::Routing& routing,
                                const Tensor& residual_TE, at::ScalarType out) const {
  std::vector<Tensor> parts;
  for (const Tensor& part_PE : parts_of_places_)
    parts.push_back(inner_.sum_of_experts(part_PE, weights_TC, routing, {}, at::kFloat));
  return inner_.add(residual_TE, sum(parts, out));
}

device::Ops::WeightedSilu SplitOps::weighted_silu_backward(const Tensor& da_PF, const Tensor& gate_up_P2F,
                                                           const device::Routing& routing) const {
  const int64_t num_ranks = std::ssize(order_), width = da_PF.size(1) / num_ranks;
  std::vector<Tensor> parts;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const auto columns = [&](const Tensor& x, int64_t first) { return x.narrow(1, first + rank * width, width); };
    const Tensor own = at::cat({columns(gate_up_P2F, 0), columns(gate_up_P2F, da_PF.size(1))}, 1);
    parts.push_back(inner_.weighted_silu_backward(columns(da_PF, 0).contiguous(), own, routing).dweights_TC);
  }
  WeightedSilu whole = inner_.weighted_silu_backward(da_PF, gate_up_P2F, routing);
  whole.dweights_TC = sum(parts, at::kFloat);
  return whole;
}

Tensor SplitOps::rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const device::Norm& norm,
                                   const Tensor& dweight) const {
  if (!sequence_parallel_) return inner_.rms_norm_backward(dy, x, weight, norm, dweight);
  const int64_t num_ranks = std::ssize(order_), num_rows = x.size(0);
  std::vector<Tensor> dx, parts;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const int64_t begin = num_rows * rank / num_ranks, count = num_rows * (rank + 1) / num_ranks - begin;
    parts.push_back(at::zeros(dweight.sizes()));
    dx.push_back(
        inner_.rms_norm_backward(dy.narrow(0, begin, count), x.narrow(0, begin, count), weight, norm, parts.back()));
  }
  dweight.add_(sum(parts, at::kFloat));
  return at::cat(dx);
}

Tensor SplitOps::qk_norm_rope_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& qkv,
                                       const Tensor& q_norm, const Tensor& k_norm, const Tensor& positions,
                                       const QkvShape& shape, const Tensor& dq_norm, const Tensor& dk_norm) const {
  const int64_t num_ranks = std::ssize(order_), K = shape.head_dim;
  const int64_t H = shape.num_heads / num_ranks, G = shape.num_kv_heads / num_ranks;  // of a rank
  QkvShape of_rank = shape;
  of_rank.num_heads = H;
  of_rank.num_kv_heads = G;
  const Tensor heads = qkv.view({qkv.size(0), shape.num_heads + 2 * shape.num_kv_heads, K});
  std::vector<Tensor> of_q, of_k;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const auto heads_of = [&](const Tensor& all, int64_t first, int64_t count) {
      return all.narrow(1, first + rank * count, count).contiguous();
    };
    const Tensor own = at::cat({heads_of(heads, 0, H), heads_of(heads, shape.num_heads, G),
                                heads_of(heads, shape.num_heads + shape.num_kv_heads, G)},
                               1);
    of_q.push_back(at::zeros({K}));
    of_k.push_back(at::zeros({K}));
    inner_.qk_norm_rope_backward(heads_of(dq, 0, H), heads_of(dk, 0, G), heads_of(dv, 0, G),
                                 own.view({qkv.size(0), -1}), q_norm, k_norm, positions, of_rank, of_q.back(),
                                 of_k.back());
  }
  dq_norm.add_(sum(of_q, at::kFloat));
  dk_norm.add_(sum(of_k, at::kFloat));
  return inner_.qk_norm_rope_backward(dq, dk, dv, qkv, q_norm, k_norm, positions, shape, {}, {});
}

}  // namespace tandem::model
