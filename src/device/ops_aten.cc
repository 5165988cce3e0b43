// The operations of device/ops.h in plain ATen. Written to be read beside the contract: float32 inside, one rounding
// per result, no fusion, no shortcut.
#include "device/ops_aten.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "base/check.h"

namespace tandem::device {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

Tensor to_float(const Tensor& x) { return x.to(at::kFloat); }

// y = x / sqrt(mean(x^2) + eps) over the last dim, before the weight. float32.
struct Normalised {
  Tensor unit;     // x times inverse
  Tensor inverse;  // 1 / sqrt(mean(x^2) + eps), last dim 1
};
Normalised normalise(const Tensor& x_float, double eps) {
  const Tensor inverse = at::rsqrt(x_float.square().mean(-1, /*keepdim=*/true) + eps);
  return {x_float * inverse, inverse};
}

// dx of y = unit(x) * w; adds to dw, summed over all dims but the last. float32.
Tensor normalise_backward(const Tensor& dy_float, const Tensor& x_float, const Tensor& w, double eps,
                          const Tensor& dw) {
  const auto [unit, inverse] = normalise(x_float, eps);
  dw.add_((dy_float * unit).reshape({-1, dw.size(0)}).sum(0));
  const Tensor dunit = dy_float * to_float(w);
  return inverse * (dunit - unit * (dunit * unit).mean(-1, /*keepdim=*/true));
}

// cos and sin of the rotation at each position, [T, 1, K / 2] float32; frequencies and angles in float32 as
// transformers' Qwen3RotaryEmbedding has them.
struct Rotation {
  Tensor cos, sin;
};
Rotation rotation(const Tensor& positions_T, int64_t head_dim, double rope_theta) {
  const auto options = positions_T.options().dtype(at::kFloat);
  const Tensor exponents = at::arange(0, head_dim, 2, options) / static_cast<double>(head_dim);
  const Tensor frequencies = at::pow(rope_theta, exponents).reciprocal();
  const Tensor angles = at::outer(to_float(positions_T), frequencies).unsqueeze(1);
  return {at::cos(angles), at::sin(angles)};
}

// Pairs (i, i + K/2) of the last dim turn by the angle (rotate_half); `sign` -1 turns back, which is the gradient.
Tensor rotate(const Tensor& x_float, const Rotation& r, double sign) {
  const int64_t half = x_float.size(-1) / 2;
  const Tensor a = x_float.narrow(-1, 0, half), b = x_float.narrow(-1, half, half);
  const Tensor sin = r.sin * sign;
  return at::cat({a * r.cos - b * sin, b * r.cos + a * sin}, -1);
}

// KV of a layer as [B, 2, G, kBlockTokens, K].
Tensor as_slots(const Tensor& kv_layer) {
  return kv_layer.view({kv_layer.size(0), 2, kv_layer.size(2), kBlockTokens, kv_layer.size(3) / kBlockTokens});
}

// The index [blocks, :, offsets] that picks slots [n] out of a [B, G, kBlockTokens, K] tensor as [n, G, K].
c10::List<std::optional<Tensor>> slot_index(const Tensor& slots) {
  const Tensor wide = slots.to(at::kLong);
  c10::List<std::optional<Tensor>> index;
  index.push_back(wide.div(kBlockTokens, "floor"));
  index.push_back(std::nullopt);
  index.push_back(wide.remainder(kBlockTokens));
  return index;
}

// The rows of one sequence and the blocks that hold its keys.
struct SequenceRows {
  Tensor rows;    // [R] int64
  Tensor blocks;  // [n] int64
  Tensor hidden;  // [R, n * kBlockTokens] bool: keys after the row's position
};
std::vector<SequenceRows> rows_by_sequence(const AttentionRows& rows, const at::Device& device) {
  const Tensor sequence = rows.row_sequence.to(at::kCPU, at::kInt).contiguous();
  const Tensor position = rows.row_position.to(at::kCPU, at::kInt).contiguous();
  std::vector<std::vector<int64_t>> members(static_cast<size_t>(rows.block_table.size(0)));
  std::vector<int64_t> last_position(members.size(), -1);
  for (int64_t t = 0; t < sequence.size(0); ++t) {
    const auto s = static_cast<size_t>(sequence.const_data_ptr<int32_t>()[t]);
    TANDEM_CHECK(s < members.size(), "attention row", t, "names sequence", s, "of", members.size());
    members[s].push_back(t);
    last_position[s] = std::max<int64_t>(last_position[s], position.const_data_ptr<int32_t>()[t]);
  }
  std::vector<SequenceRows> result;
  for (size_t s = 0; s < members.size(); ++s) {
    if (members[s].empty()) continue;
    const int64_t num_blocks = last_position[s] / kBlockTokens + 1;
    TANDEM_CHECK(num_blocks <= rows.block_table.size(1), "position", last_position[s], "lies past the block table");
    SequenceRows r;
    r.rows = at::empty({static_cast<int64_t>(members[s].size())}, at::kLong);
    std::copy(members[s].begin(), members[s].end(), r.rows.mutable_data_ptr<int64_t>());
    const Tensor positions = position.to(at::kLong).index_select(0, r.rows);
    const Tensor keys = at::arange(num_blocks * kBlockTokens, at::TensorOptions(at::kLong));
    r.hidden = keys.unsqueeze(0).gt(positions.unsqueeze(1)).to(device);
    r.rows = r.rows.to(device);
    r.blocks = rows.block_table.select(0, static_cast<int64_t>(s)).narrow(0, 0, num_blocks).to(device, at::kLong);
    result.push_back(std::move(r));
  }
  return result;
}

// Keys (half 0) or values (half 1) of a sequence: [G, keys, K] float32. Slots after the last position may hold
// anything, even NaN, which a weight of zero does not silence: they are zeroed.
Tensor gather_keys(const Tensor& slots_B2GPK, const SequenceRows& r, int64_t half) {
  const Tensor blocks = to_float(slots_B2GPK.select(1, half).index_select(0, r.blocks));
  const Tensor keys = blocks.transpose(0, 1).reshape({blocks.size(1), -1, blocks.size(3)});
  const Tensor unseen = r.hidden.all(0).view({1, -1, 1});
  return keys.masked_fill(unseen, 0.0F);
}

// [T, H, K] rows of a sequence grouped by their KV head: [G, R * (H / G), K] float32.
Tensor group_heads(const Tensor& x_THK, const SequenceRows& r, int64_t num_kv_heads) {
  const int64_t num_rows = r.rows.size(0), per_group = x_THK.size(1) / num_kv_heads, head_dim = x_THK.size(2);
  const Tensor rows = to_float(x_THK.index_select(0, r.rows));
  return rows.view({num_rows, num_kv_heads, per_group, head_dim}).transpose(0, 1).reshape({num_kv_heads, -1, head_dim});
}

// The way back: [G, R * (H / G), X] to [R, H, X].
Tensor ungroup_heads(const Tensor& x, int64_t num_rows) {
  const int64_t num_kv_heads = x.size(0), per_group = x.size(1) / num_rows;
  return x.view({num_kv_heads, num_rows, per_group, x.size(2)})
      .transpose(0, 1)
      .reshape({num_rows, num_kv_heads * per_group, x.size(2)});
}

// q k^T / sqrt(K) with the keys after each row's position at -inf: [G, R * (H / G), keys].
Tensor masked_scores(const Tensor& q, const Tensor& k, const SequenceRows& r) {
  const Tensor scores = at::bmm(q, k.transpose(1, 2)) / std::sqrt(static_cast<double>(q.size(2)));
  const int64_t num_rows = r.rows.size(0), num_keys = k.size(1);
  return scores.view({q.size(0), num_rows, -1, num_keys})
      .masked_fill(r.hidden.view({1, num_rows, 1, num_keys}), kMinusInfinity)
      .view({q.size(0), -1, num_keys});
}

class AtenOps final : public Ops {
 public:
  explicit AtenOps(int num_threads)
      : num_threads_(num_threads > 0 ? num_threads : static_cast<int>(std::thread::hardware_concurrency())) {
    at::set_num_threads(num_threads_);
  }

  std::string name() const override { return "aten"; }
  int num_threads() const override { return num_threads_; }

  Tensor linear(const Tensor& x_TK, const Tensor& w_NK, at::ScalarType out) const override {
    return at::mm(to_float(x_TK), to_float(w_NK).t()).to(out);
  }
  Tensor linear_grad_input(const Tensor& dy_TN, const Tensor& w_NK) const override {
    return at::mm(to_float(dy_TN), to_float(w_NK)).to(w_NK.scalar_type());
  }
  void linear_grad_weight(const Tensor& dy_TN, const Tensor& x_TK, const Tensor& dw_NK) const override {
    dw_NK.addmm_(to_float(dy_TN).t(), to_float(x_TK));
  }

  Tensor embedding(const Tensor& table_VE, const Tensor& ids_T) const override {
    return table_VE.index_select(0, ids_T);
  }
  void embedding_backward(const Tensor& dy_TE, const Tensor& ids_T, const Tensor& dtable_VE) const override {
    dtable_VE.index_add_(0, ids_T, to_float(dy_TE));
  }

  Tensor add(const Tensor& a_TE, const Tensor& b_TE) const override {
    return (to_float(a_TE) + to_float(b_TE)).to(a_TE.scalar_type());
  }

  Tensor rms_norm(const Tensor& x_TE, const Tensor& w_E, double eps) const override {
    return (normalise(to_float(x_TE), eps).unit * to_float(w_E)).to(x_TE.scalar_type());
  }
  Tensor rms_norm_backward(const Tensor& dy_TE, const Tensor& x_TE, const Tensor& w_E, double eps,
                           const Tensor& dw_E) const override {
    return normalise_backward(to_float(dy_TE), to_float(x_TE), w_E, eps, dw_E).to(x_TE.scalar_type());
  }

  Qkv qk_norm_rope(const Tensor& qkv_TN, const Tensor& q_norm_K, const Tensor& k_norm_K, const Tensor& positions_T,
                   const QkvShape& shape) const override {
    const auto [q, k, v] = split_qkv(qkv_TN, shape);
    const Rotation r = rotation(positions_T, shape.head_dim, shape.rope_theta);
    const auto norm_rope = [&](const Tensor& x, const Tensor& weight) {
      return rotate(normalise(to_float(x), shape.eps).unit * to_float(weight), r, 1.0).to(x.scalar_type());
    };
    return {norm_rope(q, q_norm_K), norm_rope(k, k_norm_K), v.clone(at::MemoryFormat::Contiguous)};
  }
  Tensor qk_norm_rope_backward(const Tensor& dq_THK, const Tensor& dk_TGK, const Tensor& dv_TGK, const Tensor& qkv_TN,
                               const Tensor& q_norm_K, const Tensor& k_norm_K, const Tensor& positions_T,
                               const QkvShape& shape, const Tensor& dq_norm_K, const Tensor& dk_norm_K) const override {
    const auto [q, k, v] = split_qkv(qkv_TN, shape);
    const Rotation r = rotation(positions_T, shape.head_dim, shape.rope_theta);
    const Tensor dq =
        normalise_backward(rotate(to_float(dq_THK), r, -1.0), to_float(q), q_norm_K, shape.eps, dq_norm_K);
    const Tensor dk =
        normalise_backward(rotate(to_float(dk_TGK), r, -1.0), to_float(k), k_norm_K, shape.eps, dk_norm_K);
    return at::cat({dq, dk, to_float(dv_TGK)}, 1).view_as(qkv_TN).to(qkv_TN.scalar_type());
  }

  Tensor silu_mul(const Tensor& gate_up_T2F) const override {
    const auto [gate, up] = split_gate_up(gate_up_T2F);
    return (gate * at::sigmoid(gate) * up).to(gate_up_T2F.scalar_type());
  }
  Tensor silu_mul_backward(const Tensor& dy_TF, const Tensor& gate_up_T2F) const override {
    const auto [gate, up] = split_gate_up(gate_up_T2F);
    const Tensor dy = to_float(dy_TF), sigmoid = at::sigmoid(gate);
    const Tensor dgate = dy * up * sigmoid * (1.0 + gate * (1.0 - sigmoid));
    return at::cat({dgate, dy * gate * sigmoid}, 1).to(gate_up_T2F.scalar_type());
  }

  void kv_append(const Tensor& kv_layer, const Tensor& k_TGK, const Tensor& v_TGK, const Tensor& tokens,
                 const Tensor& slots) const override {
    const Tensor cache = as_slots(kv_layer);
    cache.select(1, 0).index_put_(slot_index(slots), k_TGK.index_select(0, tokens));
    cache.select(1, 1).index_put_(slot_index(slots), v_TGK.index_select(0, tokens));
  }
  KvGrad kv_append_backward(const Tensor& dkv, int64_t num_tokens, const Tensor& tokens, const Tensor& slots,
                            int64_t num_kv_heads, int64_t head_dim, at::ScalarType dtype) const override {
    const Tensor dcache = as_slots(dkv);
    const auto collect = [&](int64_t half) {
      const Tensor sum = at::zeros({num_tokens, num_kv_heads, head_dim}, dkv.options());
      sum.index_add_(0, tokens, at::index(dcache.select(1, half), slot_index(slots)));
      return sum.to(dtype);
    };
    return {collect(0), collect(1)};
  }

  Tensor paged_attention(const Tensor& q_THK, const Tensor& kv_layer, const AttentionRows& rows,
                         const Tensor& lse_TH) const override {
    const Tensor cache = as_slots(kv_layer), out_THK = at::empty_like(q_THK);
    for (const SequenceRows& r : rows_by_sequence(rows, q_THK.device())) {
      const Tensor q = group_heads(q_THK, r, kv_layer.size(2));
      const Tensor scores = masked_scores(q, gather_keys(cache, r, 0), r);
      const Tensor lse = at::logsumexp(scores, -1, /*keepdim=*/true);
      const Tensor out = at::bmm((scores - lse).exp(), gather_keys(cache, r, 1));
      const int64_t num_rows = r.rows.size(0);
      out_THK.index_copy_(0, r.rows, ungroup_heads(out, num_rows).to(q_THK.scalar_type()));
      if (lse_TH.defined()) lse_TH.index_copy_(0, r.rows, ungroup_heads(lse, num_rows).squeeze(-1));
    }
    return out_THK;
  }
  Tensor paged_attention_backward(const Tensor& dout_THK, const Tensor& q_THK, const Tensor& out_THK,
                                  const Tensor& lse_TH, const Tensor& kv_layer, const AttentionRows& rows,
                                  const Tensor& dkv) const override {
    const Tensor cache = as_slots(kv_layer), dcache = as_slots(dkv), dq_THK = at::empty_like(q_THK);
    const int64_t num_kv_heads = kv_layer.size(2);
    const double scale = 1.0 / std::sqrt(static_cast<double>(q_THK.size(2)));
    for (const SequenceRows& r : rows_by_sequence(rows, q_THK.device())) {
      const Tensor q = group_heads(q_THK, r, num_kv_heads), dout = group_heads(dout_THK, r, num_kv_heads);
      const Tensor k = gather_keys(cache, r, 0), v = gather_keys(cache, r, 1);
      const Tensor lse = group_heads(lse_TH.unsqueeze(-1), r, num_kv_heads);
      const Tensor probability = (masked_scores(q, k, r) - lse).exp();
      // sum_j p_j dp_j, which is dout . out because out = sum_j p_j v_j.
      const Tensor mean_dprobability = (dout * group_heads(out_THK, r, num_kv_heads)).sum(-1, /*keepdim=*/true);
      const Tensor dscores = probability * (at::bmm(dout, v.transpose(1, 2)) - mean_dprobability) * scale;
      const Tensor dq = ungroup_heads(at::bmm(dscores, k), r.rows.size(0));
      dq_THK.index_copy_(0, r.rows, dq.to(q_THK.scalar_type()));
      scatter_keys(dcache, r, 0, at::bmm(dscores.transpose(1, 2), q));
      scatter_keys(dcache, r, 1, at::bmm(probability.transpose(1, 2), dout));
    }
    return dq_THK;
  }

  void logprob(const Tensor& logits_RV, const Tensor& targets_R, double temperature, const Tensor& logp_R,
               const Tensor& entropy_R, const Tensor& lse_R) const override {
    const Tensor scaled = logits_RV / temperature, lse = at::logsumexp(scaled, -1);
    const Tensor wide = targets_R.to(at::kLong);
    const Tensor picked = at::gather(scaled, 1, wide.clamp_min(0).unsqueeze(1)).squeeze(1);
    logp_R.copy_((picked - lse).masked_fill(wide.lt(0), 0.0F));
    lse_R.copy_(lse);
    if (!entropy_R.defined()) return;
    const Tensor log_probability = scaled - lse.unsqueeze(1);
    entropy_R.copy_(-(log_probability.exp() * log_probability).sum(-1));
  }
  void logprob_backward(const Tensor& logits_RV, const Tensor& targets_R, double temperature, const Tensor& dlogp_R,
                        const Tensor& dentropy_R, const Tensor& entropy_R, const Tensor& lse_R) const override {
    const Tensor log_probability = logits_RV / temperature - lse_R.unsqueeze(1);
    const Tensor probability = log_probability.exp();
    const Tensor wide = targets_R.to(at::kLong).unsqueeze(1);
    // d logp / d scaled = onehot(target) - p; nothing where there is no target.
    const Tensor dlogp = dlogp_R.unsqueeze(1).masked_fill(wide.lt(0), 0.0F);
    Tensor dscaled = (-dlogp * probability).scatter_add_(1, wide.clamp_min(0), dlogp);
    // d entropy / d scaled_j = -p_j (log p_j + entropy).
    if (dentropy_R.defined())
      dscaled = dscaled - dentropy_R.unsqueeze(1) * probability * (log_probability + entropy_R.unsqueeze(1));
    logits_RV.copy_(dscaled / temperature);
  }

  void adamw(const Tensor& weight, const Tensor& master, const Tensor& grad, const Tensor& m, const Tensor& v,
             const AdamW& p) const override {
    const Tensor g = grad * p.grad_scale;
    m.mul_(p.beta1).add_(g, 1.0 - p.beta1);
    v.mul_(p.beta2).addcmul_(g, g, 1.0 - p.beta2);
    const double correction1 = 1.0 - std::pow(p.beta1, static_cast<double>(p.step));
    const double correction2 = 1.0 - std::pow(p.beta2, static_cast<double>(p.step));
    const Tensor denominator = v.sqrt() / std::sqrt(correction2) + p.eps;
    master.mul_(1.0 - p.lr * p.weight_decay).addcdiv_(m, denominator, -p.lr / correction1);
    if (weight.const_data_ptr() != master.const_data_ptr()) weight.copy_(master);
  }
  double sum_of_squares(const Tensor& x) const override {
    // Chunks below ATen's parallel grain: the order of addition then does not depend on the number of threads.
    constexpr int64_t kChunk = 16384;
    const Tensor flat = x.flatten();
    double sum = 0.0;
    for (int64_t begin = 0; begin < flat.size(0); begin += kChunk) {
      const Tensor chunk = flat.narrow(0, begin, std::min(kChunk, flat.size(0) - begin));
      sum += chunk.to(at::kDouble).square().sum().item<double>();
    }
    return sum;
  }

 private:
  struct Split {
    Tensor q, k, v;  // views of qkv_TN: [T, H, K], [T, G, K], [T, G, K]
  };
  static Split split_qkv(const Tensor& qkv_TN, const QkvShape& s) {
    const Tensor heads = qkv_TN.view({qkv_TN.size(0), s.num_heads + 2 * s.num_kv_heads, s.head_dim});
    return {heads.narrow(1, 0, s.num_heads), heads.narrow(1, s.num_heads, s.num_kv_heads),
            heads.narrow(1, s.num_heads + s.num_kv_heads, s.num_kv_heads)};
  }
  struct GateUp {
    Tensor gate, up;  // [T, F] float32
  };
  static GateUp split_gate_up(const Tensor& gate_up_T2F) {
    const int64_t width = gate_up_T2F.size(1) / 2;
    return {to_float(gate_up_T2F.narrow(1, 0, width)), to_float(gate_up_T2F.narrow(1, width, width))};
  }
  // Adds [G, keys, K] to the blocks of a sequence: the transpose of gather_keys.
  static void scatter_keys(const Tensor& dcache, const SequenceRows& r, int64_t half, const Tensor& dkeys) {
    const int64_t num_kv_heads = dkeys.size(0), head_dim = dkeys.size(2);
    const Tensor blocks = dkeys.view({num_kv_heads, -1, kBlockTokens, head_dim}).transpose(0, 1);
    dcache.select(1, half).index_add_(0, r.blocks, blocks);
  }

  int num_threads_;
};

}  // namespace

std::unique_ptr<Ops> make_aten_ops(int num_threads) { return std::make_unique<AtenOps>(num_threads); }

}  // namespace tandem::device
