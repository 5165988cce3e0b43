// The operations of device/ops.h in plain ATen, written to be read beside the contract: float32 inside, one rounding
// per result, no fusion. ops_aten.h says which call has which shape, and why.
#include "device/ops_aten.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "device/attention_aten.h"
#include "device/experts_aten.h"
#include "device/host_sampling.h"
#include "device/rope_frequencies.h"
#include "device/sum_by_halves.h"
#include "device/thread_pool.h"
#include "device/transfer.h"

namespace tandem::device {
namespace {

Tensor to_float(const Tensor& x) { return x.to(at::kFloat); }

// out = a b; out is float32 or of the operands' dtype. `in_bfloat16`: the library multiplies operands of bfloat16.
void product_out(Tensor out, const Tensor& a, const Tensor& b, bool in_bfloat16) {
  if (!in_bfloat16) {
    if (out.scalar_type() == at::kFloat) {
      at::mm_outf(to_float(a), to_float(b), out);
    } else {
      out.copy_(at::mm(to_float(a), to_float(b)));
    }
  } else if (out.scalar_type() == at::kFloat) {
    at::mm_outf(a, b, at::kFloat, out);
  } else {
    at::mm_outf(a, b, out);
  }
}

// sum += a b, or sum = a b; float32.
void add_product(Tensor sum, GradientUse use, const Tensor& a, const Tensor& b, bool in_bfloat16) {
  const int beta = use == GradientUse::kAdd ? 1 : 0;  // of 0, ATen does not read the sum
  if (in_bfloat16) {
    at::addmm_outf(sum, a, b, at::kFloat, beta, /*alpha=*/1, sum);
  } else {
    sum.addmm_(to_float(a), to_float(b), beta);
  }
}

// target[ids[i]] += rows[i], in order of i.
void add_rows(const Tensor& target, const Tensor& ids, const Tensor& rows, const AtenCallShape& call) {
  if (!call.index_add_is_unordered) {
    target.index_add_(0, ids, rows);
    return;
  }
  c10::List<std::optional<Tensor>> index;
  index.push_back(ids.to(at::kLong));
  target.index_put_(index, rows, /*accumulate=*/true);
}

// Ids as rows of a part of a table that begins at row `first` and has `count` rows. Ids of other rows name row 0.
struct PartIds {
  Tensor rows;      // [T] int32
  Tensor is_other;  // [T, 1] bool
};
PartIds part_ids(const Tensor& ids_T, int64_t first, int64_t count) {
  const Tensor rows = ids_T.sub(first), is_other = rows.lt(0).logical_or_(rows.ge(count));
  return {rows.masked_fill(is_other, 0), is_other.unsqueeze(1)};
}

// y = x / sqrt(mean(x^2) + eps) over the last dim, before the weight, in float32.
struct Normalised {
  Tensor unit;     // x times inverse
  Tensor inverse;  // 1 / sqrt(mean(x^2) + eps), last dim 1
};
Normalised normalise(const Tensor& x_float, double eps) {
  const Tensor inverse = at::rsqrt(sum_by_halves(x_float * x_float) / static_cast<double>(x_float.size(-1)) + eps);
  return {x_float * inverse, inverse};
}

// Returns the factor that a norm multiplies each normalised row by, in float32.
Tensor factor_of(const Tensor& w, const Norm& norm) {
  return norm.offset == 0.0 ? to_float(w) : to_float(w) + norm.offset;
}

// Returns dx of y = unit(x) * factor_of(w) and adds to dw, where it is defined, the sum over all dims but the last.
// float32.
Tensor normalise_backward(const Tensor& dy_float, const Tensor& x_float, const Tensor& w, const Norm& norm,
                          const Tensor& dw) {
  const auto [unit, inverse] = normalise(x_float, norm.eps);
  if (dw.defined()) dw.add_((dy_float * unit).reshape({-1, dw.size(0)}).sum(0));
  const Tensor dunit = dy_float * factor_of(w, norm);
  const Tensor along = (dunit * unit).mean(-1, /*keepdim=*/true);
  return dunit.sub_(unit.mul_(along)).mul_(inverse);
}

// Holds cosine and sine of the rotation at each position, [T, 1, K / 2] float32. Frequencies and angles are float32, as
// in transformers' Qwen3RotaryEmbedding.
struct Rotation {
  Tensor cos, sin;
};
Rotation rotation(const Tensor& positions_T, const Ops::QkvShape& shape) {
  const Tensor host_frequencies = at::tensor(rope_frequencies(shape.head_dim, shape.rope_theta, shape.rope_factors));
  const Tensor frequencies = to_device(host_frequencies, positions_T.device());
  const Tensor angles = at::outer(to_float(positions_T), frequencies).unsqueeze(1);
  return {at::cos(angles), at::sin(angles)};
}

// Turns pairs (i, i + K/2) of the last dim by the angle (rotate_half). `sign` -1 turns back, which is the gradient.
Tensor rotate(const Tensor& x_float, const Rotation& r, double sign) {
  const int64_t half = x_float.size(-1) / 2;
  const Tensor a = x_float.narrow(-1, 0, half), b = x_float.narrow(-1, half, half);
  const Tensor sin = r.sin * sign;
  const Tensor turned = at::empty_like(x_float, at::MemoryFormat::Contiguous);
  turned.narrow(-1, 0, half).copy_((a * r.cos).sub_(b * sin));
  turned.narrow(-1, half, half).copy_((b * r.cos).add_(a * sin));
  return turned;
}

// Returns the index [blocks, :, offsets] that picks slots [n] out of a [B, G, kBlockTokens, K] tensor as [n, G, K].
c10::List<std::optional<Tensor>> slot_index(const Tensor& slot_mapping) {
  const Tensor wide = slot_mapping.to(at::kLong);
  c10::List<std::optional<Tensor>> index;
  index.push_back(wide.div(kBlockTokens, "floor"));
  index.push_back(std::nullopt);
  index.push_back(wide.remainder(kBlockTokens));
  return index;
}

// The entries that kv_append() writes. An entry whose slot is -1 is replaced by the entry of the largest slot, which
// writes the same numbers there again. So nobody has to wait for how many are left.
struct KvEntries {
  Tensor tokens, slots;
};
KvEntries written_entries(const Tensor& tokens, const Tensor& slots) {
  const Tensor own = at::arange(slots.size(0), at::TensorOptions(at::kLong).device(slots.device()));
  const Tensor source = at::where(slots.lt(0), slots.argmax(), own);
  return {tokens.index_select(0, source), slots.index_select(0, source)};
}

class AtenOps final : public Ops {
 public:
  AtenOps(at::Device device, std::string name, int num_threads, const AtenCallShape& call)
      : device_(device),
        name_(std::move(name)),
        num_threads_(num_threads > 0 ? num_threads : usable_cores()),
        call_(call),
        attention_(device, call.attention_tiles),
        host_(call.multiplies_on_host ? make_cpu_ops("auto", num_threads) : nullptr) {
    // On a device LibTorch has nothing to do on the host that needs threads. After each loop OpenMP's would spin for
    // milliseconds, on the cores that a ThreadPool needs: random weights took five times as long to draw.
    at::set_num_threads(device.is_cpu() ? num_threads_ : 1);
  }

  std::string name() const override { return name_; }
  int num_threads() const override { return num_threads_; }
  at::Device device() const override { return device_; }
  AttentionRows prepare(const AttentionRows& rows) const override {
    AttentionRows prepared = rows;
    prepared.prepared = attention_.plan(rows);
    return prepared;
  }

  Tensor linear(const Tensor& x_TK, const Tensor& w_NK, at::ScalarType out) const override {
    if (host_) return to_device(host_->linear(to_host(x_TK), to_host(w_NK), out), device_);
    const int64_t num_rows = x_TK.size(0), step = call_.linear_rows;
    const Tensor y_TN = at::empty({num_rows, w_NK.size(0)}, x_TK.options().dtype(out));
    int64_t begin = 0;
    for (; begin + step <= num_rows; begin += step)
      product_out(y_TN.narrow(0, begin, step), x_TK.narrow(0, begin, step), w_NK.t(), in_bfloat16(x_TK));
    if (const int64_t rest = num_rows - begin; rest > 0) {
      const Tensor padded = at::empty({step, w_NK.size(0)}, y_TN.options());
      product_out(padded, padded_rows(x_TK.narrow(0, begin, rest), step), w_NK.t(), in_bfloat16(x_TK));
      y_TN.narrow(0, begin, rest).copy_(padded.narrow(0, 0, rest));
    }
    return y_TN;
  }
  Tensor linear_grad_input(const Tensor& dy_TN, const Tensor& w_NK, at::ScalarType out) const override {
    const Tensor dx_TK = at::empty({dy_TN.size(0), w_NK.size(1)}, w_NK.options().dtype(out));
    product_out(dx_TK, dy_TN, w_NK, in_bfloat16(dy_TN));
    return dx_TK;
  }
  void linear_grad_weight(const Tensor& dy_TN, const Tensor& x_TK, const Tensor& dw_NK,
                          GradientUse use) const override {
    add_product(dw_NK, use, dy_TN.t(), x_TK, in_bfloat16(dy_TN));
  }

  Tensor embedding(const Tensor& table_VE, const Tensor& ids_T) const override {
    return table_VE.index_select(0, ids_T);
  }
  void embedding_backward(const Tensor& dy_TE, const Tensor& ids_T, const Tensor& dtable_VE) const override {
    add_rows(dtable_VE, ids_T, to_float(dy_TE), call_);
  }
  Tensor embedding_part(const Tensor& table_RE, int64_t first, const Tensor& ids_T) const override {
    const PartIds part = part_ids(ids_T, first, table_RE.size(0));
    return table_RE.index_select(0, part.rows).masked_fill_(part.is_other, 0);
  }
  void embedding_part_backward(const Tensor& dy_TE, int64_t first, const Tensor& ids_T,
                               const Tensor& dtable_RE) const override {
    const PartIds part = part_ids(ids_T, first, dtable_RE.size(0));
    add_rows(dtable_RE, part.rows, to_float(dy_TE).masked_fill(part.is_other, 0), call_);
  }

  void sum_parts(const std::vector<Tensor>& parts, const Tensor& residual, const Tensor& sum) const override {
    Tensor total = parts[0].to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    for (size_t i = 1; i < parts.size(); ++i) total.add_(parts[i]);
    sum.copy_(total);
    if (residual.defined()) sum.add_(residual);
  }

  Tensor add(const Tensor& a_TE, const Tensor& b_TE) const override {
    return a_TE + b_TE;  // bfloat16: ATen adds in float32 and rounds once
  }

  void add_bias(const Tensor& y_TN, const Tensor& bias_N) const override { y_TN.add_(bias_N); }
  void add_bias_backward(const Tensor& dy_TN, const Tensor& dbias_N) const override {
    dbias_N.add_(to_float(dy_TN).sum(0));
  }

  Tensor rms_norm(const Tensor& x_TE, const Tensor& w_E, const Norm& norm) const override {
    return normalise(to_float(x_TE), norm.eps).unit.mul_(factor_of(w_E, norm)).to(x_TE.scalar_type());
  }
  Tensor rms_norm_backward(const Tensor& dy_TE, const Tensor& x_TE, const Tensor& w_E, const Norm& norm,
                           const Tensor& dw_E) const override {
    return normalise_backward(to_float(dy_TE), to_float(x_TE), w_E, norm, dw_E).to(x_TE.scalar_type());
  }

  Qkv qk_norm_rope(const Tensor& qkv_TN, const Tensor& q_norm_K, const Tensor& k_norm_K, const Tensor& positions_T,
                   const QkvShape& shape) const override {
    const auto [q, k, v] = split_qkv(qkv_TN, shape);
    const Rotation r = rotation(positions_T, shape);
    const auto norm_rope = [&](const Tensor& x, const Tensor& weight) {
      return rotate(normalise(to_float(x), shape.eps).unit.mul_(factor_of(weight, shape.norm())), r, 1.0)
          .to(x.scalar_type());
    };
    return {norm_rope(q, q_norm_K), norm_rope(k, k_norm_K), v.clone(at::MemoryFormat::Contiguous)};
  }
  Tensor qk_norm_rope_backward(const Tensor& dq_THK, const Tensor& dk_TGK, const Tensor& dv_TGK, const Tensor& qkv_TN,
                               const Tensor& q_norm_K, const Tensor& k_norm_K, const Tensor& positions_T,
                               const QkvShape& shape, const Tensor& dq_norm_K, const Tensor& dk_norm_K) const override {
    const auto [q, k, v] = split_qkv(qkv_TN, shape);
    const Rotation r = rotation(positions_T, shape);
    const Tensor dqkv_TN = at::empty_like(qkv_TN);
    const auto [dq, dk, dv] = split_qkv(dqkv_TN, shape);
    dq.copy_(normalise_backward(rotate(to_float(dq_THK), r, -1.0), to_float(q), q_norm_K, shape.norm(), dq_norm_K));
    dk.copy_(normalise_backward(rotate(to_float(dk_TGK), r, -1.0), to_float(k), k_norm_K, shape.norm(), dk_norm_K));
    dv.copy_(dv_TGK);
    return dqkv_TN;
  }

  Qkv rope(const Tensor& qkv_TN, const Tensor& positions_T, const QkvShape& shape) const override {
    const auto [q, k, v] = split_qkv(qkv_TN, shape);
    const Rotation r = rotation(positions_T, shape);
    // This is a function, so that the temporaries of q's rotation are freed before k's are allocated.
    const auto rotated = [&](const Tensor& x) { return rotate(to_float(x), r, 1.0).to(x.scalar_type()); };
    return {rotated(q), rotated(k), v.clone(at::MemoryFormat::Contiguous)};
  }
  Tensor rope_backward(const Tensor& dq_THK, const Tensor& dk_TGK, const Tensor& dv_TGK, const Tensor& positions_T,
                       const QkvShape& shape) const override {
    const Rotation r = rotation(positions_T, shape);
    const int64_t width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
    const Tensor dqkv_TN = at::empty({dq_THK.size(0), width}, dq_THK.options());
    const auto [dq, dk, dv] = split_qkv(dqkv_TN, shape);
    dq.copy_(rotate(to_float(dq_THK), r, -1.0));
    dk.copy_(rotate(to_float(dk_TGK), r, -1.0));
    dv.copy_(dv_TGK);
    return dqkv_TN;
  }

  Tensor silu_mul(const Tensor& gate_up_T2F) const override {
    const auto [gate, up] = split_gate_up(gate_up_T2F);
    return at::sigmoid(gate).mul_(gate).mul_(up).to(gate_up_T2F.scalar_type());
  }
  Tensor silu_mul_backward(const Tensor& dy_TF, const Tensor& gate_up_T2F) const override {
    const auto [gate, up] = split_gate_up(gate_up_T2F);
    const Tensor dy = to_float(dy_TF), sigmoid = at::sigmoid(gate), dgate_up_T2F = at::empty_like(gate_up_T2F);
    const int64_t width = gate.size(1);
    dgate_up_T2F.narrow(1, width, width).copy_((dy * gate).mul_(sigmoid));
    const Tensor slope = (1.0 - sigmoid).mul_(gate).add_(1.0);  // derivative of silu, divided by sigmoid
    dgate_up_T2F.narrow(1, 0, width).copy_(slope.mul_(sigmoid).mul_(up).mul_(dy));
    dy_TF.copy_(sigmoid.mul_(gate).mul_(up));
    return dgate_up_T2F;
  }

  Tensor gelu_mul(const Tensor& gate_up_T2F) const override {
    const auto [gate, up] = split_gate_up(gate_up_T2F);
    return gelu_sigmoid(gate).mul_(gate).mul_(up).to(gate_up_T2F.scalar_type());
  }
  Tensor gelu_mul_backward(const Tensor& dy_TF, const Tensor& gate_up_T2F) const override {
    const auto [gate, up] = split_gate_up(gate_up_T2F);
    const Tensor dy = to_float(dy_TF), sigmoid = gelu_sigmoid(gate), dgate_up_T2F = at::empty_like(gate_up_T2F);
    const int64_t width = gate.size(1);
    dgate_up_T2F.narrow(1, width, width).copy_((dy * gate).mul_(sigmoid));
    // The derivative of gelu, divided by the sigmoid, is 1 + (1 - sigmoid) g du/dg.
    const Tensor du = (gate * gate).mul_(3.0 * kGeluCubic).add_(1.0).mul_(kGeluScale);
    const Tensor slope = (1.0 - sigmoid).mul_(gate).mul_(du).add_(1.0);
    dgate_up_T2F.narrow(1, 0, width).copy_(slope.mul_(sigmoid).mul_(up).mul_(dy));
    dy_TF.copy_(sigmoid.mul_(gate).mul_(up));
    return dgate_up_T2F;
  }

  Routing route(const Tensor& logits_TX, const RouteRule& rule) const override {
    return experts_aten::route(logits_TX, rule);
  }
  Tensor route_backward(const Tensor& dweights_TC, const Tensor& logits_TX, const Routing& routing,
                        const RouteRule& rule, at::ScalarType out) const override {
    return experts_aten::route_backward(dweights_TC, logits_TX, routing, rule, out);
  }
  Tensor linear_of_experts(const Tensor& x, RowsAre x_rows, const Tensor& w_XNK, const Routing& routing,
                           at::ScalarType out) const override {
    return experts_aten::linear(*this, x, x_rows, w_XNK, routing, out);
  }
  Tensor linear_of_experts_grad_input(const Tensor& dy, RowsAre dy_rows, const Tensor& w_XNK, const Routing& routing,
                                      at::ScalarType out) const override {
    return experts_aten::linear_grad_input(*this, dy, dy_rows, w_XNK, routing, out);
  }
  void linear_of_experts_grad_weight(const Tensor& dy, RowsAre dy_rows, const Tensor& x, RowsAre x_rows,
                                     const Tensor& dw_XNK, const Routing& routing, GradientUse use) const override {
    experts_aten::linear_grad_weight(*this, dy, dy_rows, x, x_rows, dw_XNK, routing, use);
  }
  Tensor sum_of_experts(const Tensor& y_PE, const Tensor& weights_TC, const Routing& routing, const Tensor& residual_TE,
                        at::ScalarType out) const override {
    return experts_aten::sum(y_PE, weights_TC, routing, residual_TE, out);
  }
  WeightedSilu weighted_silu_backward(const Tensor& da_PF, const Tensor& gate_up_P2F,
                                      const Routing& routing) const override {
    return experts_aten::weighted_silu_backward(da_PF, gate_up_P2F, routing);
  }

  void kv_append(const Tensor& kv_layer, const Tensor& k_TGK, const Tensor& v_TGK, const Tensor& tokens,
                 const Tensor& slot_mapping) const override {
    const Tensor cache = as_slots(kv_layer);
    const KvEntries entries = written_entries(tokens, slot_mapping);
    const c10::List<std::optional<Tensor>> index = slot_index(entries.slots);
    cache.select(1, 0).index_put_(index, k_TGK.index_select(0, entries.tokens));
    cache.select(1, 1).index_put_(index, v_TGK.index_select(0, entries.tokens));
  }
  Tensor paged_attention(const Tensor& q_THK, const Tensor& kv_layer, const AttentionRows& rows,
                         const Tensor& lse_TH) const override {
    return attention_.forward(q_THK, kv_layer, *tiles_of(rows), rows.window, lse_TH);
  }
  AttentionGrad attention_backward(const Tensor& dout_THK, const Tensor& q_THK, const Tensor& out_THK,
                                   const Tensor& lse_TH, const Tensor& kv_layer,
                                   const AttentionRows& rows) const override {
    const std::shared_ptr<const AttentionTiles> tiles = tiles_of(rows);
    TANDEM_CHECK(tiles->kv_tokens.defined(), "rows of attention without what the backward needs");
    const Tensor dkv = at::zeros(kv_layer.sizes(), q_THK.options().dtype(at::kFloat));
    Tensor dq_THK = attention_.backward(dout_THK, q_THK, out_THK, lse_TH, kv_layer, *tiles, rows.window, dkv);
    // This is the transpose of kv_append(): the sum over the slots of each token.
    const auto collect = [&](int64_t half) {
      const Tensor sum = at::zeros({q_THK.size(0), kv_layer.size(2), q_THK.size(2)}, dkv.options());
      add_rows(sum, tiles->kv_tokens, at::index(as_slots(dkv).select(1, half), slot_index(tiles->kv_slots)), call_);
      return sum.to(q_THK.scalar_type());
    };
    return {std::move(dq_THK), collect(0), collect(1)};
  }

  void logprob(const Tensor& logits_RV, const Tensor& targets_R, double temperature, const Tensor& logp_R,
               const Tensor& entropy_R, const Tensor& lse_R) const override {
    const Tensor scaled = logits_RV / temperature, largest = scaled.amax(-1, /*keepdim=*/true);
    // 0 times the smallest logit is NaN where that is -inf, which else would look like a token that is not there.
    const Tensor not_finite = logits_RV.amin(-1, /*keepdim=*/true).mul_(0.0F);
    const Tensor lse = (largest + sum_by_halves((scaled - largest).exp_()).log()).add_(not_finite).squeeze(-1);
    const Tensor wide = targets_R.to(at::kLong);
    const Tensor picked = at::gather(scaled, 1, wide.clamp_min(0).unsqueeze(1)).squeeze(1);
    logp_R.copy_((picked - lse).masked_fill(wide.lt(0), 0.0F));
    lse_R.copy_(lse);
    if (!entropy_R.defined()) return;
    const Tensor log_probability = scaled.sub_(lse.unsqueeze(1));
    entropy_R.copy_(-sum_by_halves(log_probability.exp().mul_(log_probability)).squeeze(-1));
  }
  Tensor logprob_backward(const Tensor& logits_RV, const Tensor& targets_R, double temperature, const Tensor& dlogp_R,
                          const Tensor& dentropy_R, const Tensor& entropy_R, const Tensor& lse_R,
                          at::ScalarType /*dtype*/) const override {
    // If nobody needs the logarithms, the probabilities take their memory.
    const Tensor log_probability = (logits_RV / temperature).sub_(lse_R.unsqueeze(1));
    const Tensor probability = dentropy_R.defined() ? log_probability.exp() : log_probability.exp_();
    const Tensor wide = targets_R.to(at::kLong).unsqueeze(1);
    // d logp / d scaled = onehot(target) - p; it is 0 where there is no target.
    const Tensor dlogp = dlogp_R.unsqueeze(1).masked_fill(wide.lt(0), 0.0F);
    Tensor dlogits_RV = logits_RV;
    at::mul_out(dlogits_RV, probability, -dlogp);
    const int64_t vocab = logits_RV.size(1);
    dlogits_RV.scatter_add_(1, wide.clamp(0, vocab - 1), dlogp.masked_fill(wide.ge(vocab), 0.0F));
    // d entropy / d scaled_j = -p_j (log p_j + entropy).
    if (dentropy_R.defined())
      dlogits_RV.sub_(probability.mul_(dentropy_R.unsqueeze(1)).mul_(log_probability.add_(entropy_R.unsqueeze(1))));
    return dlogits_RV.div_(temperature);
  }

  void sample(const Tensor& logits_RV, const Tensor& draws, const Tensor& token_n, const Tensor& logprob_n,
              const Tensor& behavior_n) const override {
    sampling_.sample(*this, logits_RV, draws, token_n, logprob_n, behavior_n);
  }
  void take_drawn(const Tensor& ids_T, const Tensor& drawn_n) const override {
    const Tensor index = ids_T.bitwise_not();  // -1 - id
    const Tensor drawn = drawn_n.index_select(0, index.clamp_min(0)).clamp_min(0);
    ids_T.copy_(at::where(index.ge(0), drawn, ids_T));
  }

  void adamw(const Tensor& weight, const Tensor& master, const Tensor& grad, const Tensor& m, const Tensor& v,
             const AdamW& p) const override {
    Tensor g = grad * p.grad_scale;
    m.mul_(p.beta1).add_(g, 1.0 - p.beta1);
    v.mul_(p.beta2).addcmul_(g, g, 1.0 - p.beta2);
    const double correction1 = 1.0 - std::pow(p.beta1, static_cast<double>(p.step));
    const double correction2 = 1.0 - std::pow(p.beta2, static_cast<double>(p.step));
    // This is m / denominator, corrected; g's memory holds each in turn. The decay joins it before the weight's only
    // rounding, because 1 - lr * weight decay is no float32 number.
    at::sqrt_out(g, v).div_(std::sqrt(correction2)).add_(p.eps);
    at::div_out(g, m, g).div_(correction1).add_(master, p.weight_decay);
    master.sub_(g, p.lr);
    if (weight.const_data_ptr() != master.const_data_ptr()) weight.copy_(master);
  }
  std::vector<double> sums_of_squares(const Tensor& x, int64_t block_elements) const override {
    const Tensor flat = x.flatten();
    const int64_t whole = flat.size(0) / block_elements, rest = flat.size(0) % block_elements;
    std::vector<double> sums;
    const auto add = [&](const Tensor& blocks) {
      const Tensor wide = (call_.has_float64 ? blocks : to_host(blocks)).to(at::kDouble);
      const Tensor host = to_host(wide.mul_(wide).sum(1));
      sums.insert(sums.end(), host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.size(0));
    };
    const int64_t chunk = std::max<int64_t>(call_.sum_elements / block_elements, 1);
    for (int64_t begin = 0; begin < whole; begin += chunk) {
      const int64_t count = std::min(chunk, whole - begin);
      add(flat.narrow(0, begin * block_elements, count * block_elements).view({count, block_elements}));
    }
    if (rest > 0) add(flat.narrow(0, whole * block_elements, rest).view({1, rest}));
    return sums;
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
  // Returns sigmoid(u) of gelu(g) = g sigmoid(u).
  static Tensor gelu_sigmoid(const Tensor& gate) {
    return (gate * gate).mul_(kGeluCubic).add_(1.0).mul_(gate).mul_(kGeluScale).sigmoid_();
  }
  bool in_bfloat16(const Tensor& factor) const {
    return call_.multiplies_bfloat16 && factor.scalar_type() == at::kBFloat16;
  }
  // Returns [step, K]: the rows, and zeros below them.
  static Tensor padded_rows(const Tensor& rows, int64_t step) {
    if (rows.size(0) == step) return rows;
    const Tensor padded = at::zeros({step, rows.size(1)}, rows.options());
    padded.narrow(0, 0, rows.size(0)).copy_(rows);
    return padded;
  }
  std::shared_ptr<const AttentionTiles> tiles_of(const AttentionRows& rows) const {
    if (rows.prepared == nullptr) return attention_.plan(rows);
    return std::static_pointer_cast<const AttentionTiles>(rows.prepared);
  }

  const at::Device device_;
  const std::string name_;
  const int num_threads_;
  const AtenCallShape call_;
  const AttentionAten attention_;
  const std::unique_ptr<Ops> host_;  // computes linear(); null: the device does
  // Calls come from one thread at a time.
  mutable ThreadPool sampling_thread_{1};  // one thread: the caller
  mutable HostSampling sampling_{sampling_thread_};
};

}  // namespace

std::unique_ptr<Ops> make_aten_ops(int num_threads) {
  // Calls are small, since padding costs, and sums stay below ATen's parallel grain, so that the order of addition does
  // not depend on the number of threads.
  return make_aten_ops(at::kCPU, "aten", num_threads, {.linear_rows = 16, .attention_tiles = 1, .sum_elements = 16384});
}

std::unique_ptr<Ops> make_aten_ops(at::Device device, const std::string& name, int num_threads,
                                   const AtenCallShape& call) {
  return std::make_unique<AtenOps>(device, name, num_threads, call);
}

}  // namespace tandem::device
