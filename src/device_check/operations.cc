#include "device_check/operations.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "device/block.h"
#include "device/draw.h"

namespace tandem::device_check {

namespace {

using at::Tensor;
using device::GradientUse;
using Results = std::vector<Tensor>;

constexpr double kTemperature = 0.7;
// A result that may be rounded to bfloat16 on its way, or whose factors may.
constexpr double kOneRounding = 0x1.0p-8, kRoundedFactors = 0x1.0p-7;

Tensor empty_on(const Draws& draw, at::IntArrayRef shape, at::ScalarType dtype) {
  return at::empty(shape, at::TensorOptions(dtype).device(draw.ops().device()));
}

Results linear(Draws& draw, const Sizes& s) {
  const Tensor x = draw.normal({s.rows, s.wide}), w = draw.normal({s.narrow, s.wide});
  return {draw.ops().linear(x, w, at::kFloat), draw.ops().linear(x, w, draw.dtype())};
}

Results linear_add(Draws& draw, const Sizes& s) {
  const Tensor x = draw.normal({s.rows, s.wide}), w = draw.normal({s.narrow, s.wide});
  return {draw.ops().linear_add(x, w, draw.normal({s.rows, s.narrow}))};
}

Results linear_add_to(Draws& draw, const Sizes& s) {
  const Tensor x = draw.normal({s.rows, s.wide}), w = draw.normal({s.narrow, s.wide});
  const Tensor y = draw.normal({s.rows, s.narrow + 24});
  draw.ops().linear_add_to(x, w, y.narrow(1, 8, s.narrow));
  return {y};
}

Results linear_grad_input(Draws& draw, const Sizes& s) {
  return {draw.ops().linear_grad_input(draw.normal({s.rows, s.narrow}), draw.normal({s.narrow, s.wide}), at::kFloat)};
}

Results linear_grad_weight(Draws& draw, const Sizes& s) {
  const Tensor dy = draw.normal({s.rows, s.narrow}), x = draw.normal({s.rows, s.wide});
  const Tensor added = draw.floats({s.narrow, s.wide}), set = draw.floats({s.narrow, s.wide});
  draw.ops().linear_grad_weight(dy, x, added, GradientUse::kAdd);
  draw.ops().linear_grad_weight(dy, x, set, GradientUse::kSet);
  return {added, set};
}

Results embedding(Draws& draw, const Sizes& s) {
  const Tensor table = draw.normal({s.vocab, s.narrow}), ids = draw.ids(s.rows, s.vocab);
  const int64_t half = s.vocab / 2;
  return {draw.ops().embedding(table, ids), draw.ops().embedding_part(table.narrow(0, half, half / 2), half, ids)};
}

// Few ids for many rows: equal ones are added in the order of their rows.
Results embedding_backward(Draws& draw, const Sizes& s) {
  constexpr int64_t kRows = 7;
  const Tensor dy = draw.normal({s.rows, s.narrow}), ids = draw.ids(s.rows, kRows);
  const Tensor whole = draw.floats({kRows, s.narrow}), part = draw.floats({3, s.narrow});
  draw.ops().embedding_backward(dy, ids, whole);
  draw.ops().embedding_part_backward(dy, /*first=*/2, ids, part);
  return {whole, part};
}

Results sum_parts(Draws& draw, const Sizes& s) {
  const std::vector<Tensor> floats = {draw.floats({s.rows, s.wide}), draw.floats({s.rows, s.wide}),
                                      draw.floats({s.rows, s.wide})};
  const Tensor sum = empty_on(draw, {s.rows, s.wide}, at::kFloat),
               with_residual = empty_on(draw, {s.rows, s.wide}, draw.dtype());
  draw.ops().sum_parts(floats, {}, sum);
  draw.ops().sum_parts(floats, draw.normal({s.rows, s.wide}), with_residual);
  return {sum, with_residual};
}

Results add(Draws& draw, const Sizes& s) {
  const Tensor y = draw.normal({s.rows, s.wide}), dbias = draw.floats({s.wide});
  const Results results = {draw.ops().add(draw.normal({s.rows, s.wide}), y)};
  draw.ops().add_bias(y, draw.normal({s.wide}));
  draw.ops().add_bias_backward(draw.normal({s.rows, s.wide}), dbias);
  return {results[0], y, dbias};
}

Results rms_norm(Draws& draw, const Sizes& s) {
  const Tensor x = draw.normal({s.rows, s.wide}), w = draw.normal({s.wide}, 1.0, 0.2);
  const Tensor dw = draw.floats({s.wide});
  const Tensor dx = draw.ops().rms_norm_backward(draw.normal({s.rows, s.wide}), x, w, kEps, dw);
  return {draw.ops().rms_norm(x, w, kEps), dx, dw};
}

device::Ops::QkvShape qkv_shape(const Sizes& s) {
  return {.num_heads = s.heads, .num_kv_heads = s.kv_heads, .head_dim = s.head_dim, .rope_theta = 1e6, .eps = kEps};
}

Results rotation(Draws& draw, const Sizes& s, bool normalises) {
  const device::Ops& ops = draw.ops();
  const device::Ops::QkvShape shape = qkv_shape(s);
  const Tensor qkv = draw.normal({s.rows, (s.heads + 2 * s.kv_heads) * s.head_dim}), positions = draw.ids(s.rows, 5000);
  const Tensor dq = draw.normal({s.rows, s.heads, s.head_dim}), dk = draw.normal({s.rows, s.kv_heads, s.head_dim});
  const Tensor dv = draw.normal({s.rows, s.kv_heads, s.head_dim});
  if (!normalises) {
    const device::Ops::Qkv rotated = ops.rope(qkv, positions, shape);
    return {rotated.q_THK, rotated.k_TGK, rotated.v_TGK, ops.rope_backward(dq, dk, dv, positions, shape)};
  }
  const Tensor q_norm = draw.normal({s.head_dim}, 1.0, 0.2), k_norm = draw.normal({s.head_dim}, 1.0, 0.2);
  const Tensor dq_norm = draw.floats({s.head_dim}), dk_norm = draw.floats({s.head_dim});
  const device::Ops::Qkv rotated = ops.qk_norm_rope(qkv, q_norm, k_norm, positions, shape);
  const Tensor dqkv = ops.qk_norm_rope_backward(dq, dk, dv, qkv, q_norm, k_norm, positions, shape, dq_norm, dk_norm);
  return {rotated.q_THK, rotated.k_TGK, rotated.v_TGK, dqkv, dq_norm, dk_norm};
}
Results rope(Draws& draw, const Sizes& s) { return rotation(draw, s, /*normalises=*/false); }
Results qk_norm_rope(Draws& draw, const Sizes& s) { return rotation(draw, s, /*normalises=*/true); }

Results silu_mul(Draws& draw, const Sizes& s) {
  const Tensor gate_up = draw.normal({s.rows, 2 * s.narrow}, 0.0, 3.0), dy = draw.normal({s.rows, s.narrow});
  return {draw.ops().silu_mul(gate_up), draw.ops().silu_mul_backward(dy, gate_up), dy};
}

constexpr int64_t kExperts = 16;
constexpr device::RouteRule kRoute = {.chosen = 4, .normalises = true};

Results route(Draws& draw, const Sizes& s) {
  const Tensor logits = draw.floats({s.rows, kExperts});
  const device::Routing routing = draw.ops().route(logits, kRoute);
  const Tensor dweights = draw.floats({s.rows, kRoute.chosen});
  return {routing.ids_TC,     routing.weights_TC,
          routing.offsets_X1, routing.places_TC,
          routing.sources_P,  draw.ops().route_backward(dweights, logits, routing, kRoute, at::kFloat)};
}

Results linear_of_experts(Draws& draw, const Sizes& s) {
  const device::Ops& ops = draw.ops();
  const device::Routing routing = ops.route(draw.floats({s.rows, kExperts}), kRoute);
  const Tensor x = draw.normal({s.rows, s.wide}), w = draw.normal({kExperts * s.narrow, s.wide});
  const Tensor dy = draw.normal({s.rows * kRoute.chosen, s.narrow});
  const Tensor dw = draw.floats({kExperts * s.narrow, s.wide});
  using device::RowsAre;
  ops.linear_of_experts_grad_weight(dy, RowsAre::kPlaces, x, RowsAre::kTokens, dw, routing, GradientUse::kAdd);
  return {ops.linear_of_experts(x, RowsAre::kTokens, w, routing, at::kFloat),
          ops.linear_of_experts_grad_input(dy, RowsAre::kPlaces, w, routing, at::kFloat), dw};
}

Results sum_of_experts(Draws& draw, const Sizes& s) {
  const device::Ops& ops = draw.ops();
  const device::Routing routing = ops.route(draw.floats({s.rows, kExperts}), kRoute);
  const int64_t places = s.rows * kRoute.chosen;
  const Tensor y = draw.normal({places, s.wide}), residual = draw.normal({s.rows, s.wide});
  const device::Ops::WeightedSilu silu = ops.weighted_silu_backward(
      draw.normal({places, s.narrow}), draw.normal({places, 2 * s.narrow}, 0.0, 3.0), routing);
  return {ops.sum_of_experts(y, routing.weights_TC, routing, residual, draw.dtype()), silu.dgate_up_P2F,
          silu.weighted_PF, silu.dweights_TC};
}

// Three sequences whose blocks lie anywhere in the cache; each token is a query row.
Results attention(Draws& draw, const Sizes& s) {
  const device::Ops& ops = draw.ops();
  const std::array<int64_t, 3> lengths = {1, s.rows / 3, s.rows - 1 - s.rows / 3};
  std::vector<int32_t> sequence_of_row, position, offsets = {0}, slots, tokens(static_cast<size_t>(s.rows));
  std::iota(tokens.begin(), tokens.end(), 0);
  const int64_t max_blocks = (s.rows + device::kBlockTokens - 1) / device::kBlockTokens, num_blocks = 3 * max_blocks;
  std::vector<int32_t> table(static_cast<size_t>(num_blocks));
  for (int64_t i = 0; i < num_blocks; ++i)
    table[static_cast<size_t>(i)] = static_cast<int32_t>((i * 7 + 3) % num_blocks);
  if (std::gcd(int64_t{7}, num_blocks) > 1) std::iota(table.rbegin(), table.rend(), 0);
  for (size_t sequence = 0; sequence < lengths.size(); ++sequence) {
    for (int64_t p = 0; p < lengths[sequence]; ++p) {
      sequence_of_row.push_back(static_cast<int32_t>(sequence));
      position.push_back(static_cast<int32_t>(p));
      const auto block = static_cast<size_t>(static_cast<int64_t>(sequence) * max_blocks + p / device::kBlockTokens);
      slots.push_back(table[block] * static_cast<int32_t>(device::kBlockTokens) +
                      static_cast<int32_t>(p % device::kBlockTokens));
    }
    offsets.push_back(static_cast<int32_t>(position.size()));
  }
  const device::AttentionRows rows = ops.prepare({.sequence_of_row = int32s(sequence_of_row),
                                                  .row_position = int32s(position),
                                                  .block_table = int32s(table).view({3, max_blocks}),
                                                  .group_offsets = int32s(offsets),
                                                  .kv_tokens = int32s(tokens),
                                                  .kv_slots = int32s(slots)});
  const Tensor kv_layer = at::zeros({num_blocks, 2, s.kv_heads, s.head_dim * device::kBlockTokens},
                                    at::TensorOptions(draw.dtype()).device(ops.device()));
  const Tensor q = draw.normal({s.rows, s.heads, s.head_dim}), k = draw.normal({s.rows, s.kv_heads, s.head_dim});
  const Tensor v = draw.normal({s.rows, s.kv_heads, s.head_dim}), dout = draw.normal({s.rows, s.heads, s.head_dim});
  ops.kv_append(kv_layer, k, v, draw.to_device(int32s(tokens)), draw.to_device(int32s(slots)));
  const Tensor lse = empty_on(draw, {s.rows, s.heads}, at::kFloat);
  const Tensor out = ops.paged_attention(q, kv_layer, rows, lse);
  const device::Ops::AttentionGrad grad = ops.attention_backward(dout, q, out, lse, kv_layer, rows);
  return {out, lse, grad.dq_THK, grad.dk_TGK, grad.dv_TGK};
}

Results logprob(Draws& draw, const Sizes& s) {
  const Tensor logits = draw.floats({s.rows, s.vocab}, 4.0), targets = draw.ids(s.rows, s.vocab);
  const Tensor logp = draw.zeros({s.rows}), entropy = draw.zeros({s.rows}), lse = draw.zeros({s.rows});
  draw.ops().logprob(logits, targets, kTemperature, logp, entropy, lse);
  const Tensor grad = draw.ops().logprob_backward(logits, targets, kTemperature, draw.floats({s.rows}),
                                                  draw.floats({s.rows}, 0.1), entropy, lse, draw.dtype());
  return {logp, entropy, lse, grad};
}

// The token of each row is the reference's: greedy, and drawn with all cuts.
Results sample(Draws& draw, const Sizes& s) {
  const Tensor logits = draw.floats({s.rows, s.vocab}, 4.0);
  std::vector<device::Draw> draws(static_cast<size_t>(2 * s.rows));
  for (size_t i = 0; i < draws.size(); ++i) {
    device::Draw& one = draws[i];
    one.seed = 7;
    one.sample_id = i;
    one.row = static_cast<int32_t>(i / 2);
    one.temperature = i % 2 == 0 ? 0.0 : kTemperature;
    if (i % 4 == 3) one.top_p = 0.9;
    if (i % 8 == 7) one.top_k = 40;
  }
  const auto count = static_cast<int64_t>(draws.size());
  const Tensor words =
      at::from_blob(draws.data(), {count * static_cast<int64_t>(sizeof(device::Draw))}, at::kByte).clone();
  const Tensor token = empty_on(draw, {count}, at::kInt), logp = draw.zeros({count}), behavior = draw.zeros({count});
  draw.ops().sample(logits, draw.to_device(words), token, logp, behavior);
  const Tensor ids = draw.to_device(int32s({5, -1, 9, -3}));
  draw.ops().take_drawn(ids, token);
  return {token, ids, logp, behavior};
}

Results adamw(Draws& draw, const Sizes& s) {
  const int64_t n = s.rows * s.wide;
  const Tensor master = draw.floats({n}), m = draw.floats({n}, 0.1), v = draw.positive({n}, 0.1);
  const Tensor grad = draw.floats({n});
  const Tensor weight = draw.dtype() == at::kFloat ? master : master.to(draw.dtype());
  draw.ops().adamw(
      weight, master, grad, m, v,
      {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 0.5, .step = 3});
  return {master, m, v, weight};
}

Results sums_of_squares(Draws& draw, const Sizes& s) {
  const std::vector<double> sums = draw.ops().sums_of_squares(draw.floats({s.rows * s.wide}), 1024);
  return {at::from_blob(const_cast<double*>(sums.data()), {std::ssize(sums)}, at::kDouble).clone()};
}

constexpr std::array kOperations = {
    Operation{"linear", linear},
    Operation{"linear_add", linear_add, 1e-5, kOneRounding},
    Operation{"linear_add_to", linear_add_to, 1e-5, kOneRounding},
    Operation{"linear_grad_input", linear_grad_input},
    Operation{"linear_grad_weight", linear_grad_weight},
    Operation{"embedding, embedding_part", embedding, 0.0, 0.0},
    Operation{"embedding_backward", embedding_backward},
    Operation{"sum_parts", sum_parts, 1e-6, kOneRounding},
    Operation{"add, add_bias", add},
    Operation{"rms_norm", rms_norm},
    Operation{"rope", rope, 2e-5, 2e-5},
    Operation{"qk_norm_rope", qk_norm_rope, 2e-5, 2e-5},
    Operation{"silu_mul", silu_mul},
    Operation{"route", route},
    Operation{"linear_of_experts", linear_of_experts},
    Operation{"sum_of_experts", sum_of_experts},
    Operation{"attention", attention, 2e-5, kRoundedFactors},
    Operation{"logprob", logprob},
    Operation{"sample", sample},
    Operation{"adamw", adamw, 1e-6, 1e-6},
    Operation{"sums_of_squares", sums_of_squares, 1e-6, 1e-6},
};

}  // namespace

std::span<const Operation> operations() { return kOperations; }

}  // namespace tandem::device_check
