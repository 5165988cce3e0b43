#include "device_check/rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device/block.h"
#include "device/draw.h"
#include "device_check/draws.h"
#include "device_check/numbers.h"

namespace tandem::device_check {

namespace {

using at::Tensor;
using Rows = std::vector<int64_t>;

constexpr int64_t kMostRows = 300;  // more than the 256 rows of a padded product
constexpr int64_t kRowExperts = 8;  // each has an eighth of the rows of gate_up's weight

// An operation over some rows of its arguments: a row of the result for each.
struct RowOperation {
  std::string name;
  std::function<Tensor(const Rows& rows)> run;
};

// The rows of arguments on the device, copied by the host: a device's own way to pick rows is another question.
Tensor take(const Draws& draw, const Tensor& host, const Rows& rows) {
  const Tensor index = at::from_blob(const_cast<int64_t*>(rows.data()), {std::ssize(rows)}, at::kLong);
  return draw.to_device(host.index_select(0, index));
}

// Keys of one sequence per row: row t attends to t keys, whatever rows are beside it.
Tensor attend(const Draws& draw, const Tensor& q, const Tensor& kv_layer, int64_t max_blocks, const Rows& rows) {
  std::vector<int32_t> sequence_of_row, position, table;
  for (const int64_t row : rows) {
    sequence_of_row.push_back(static_cast<int32_t>(sequence_of_row.size()));
    position.push_back(static_cast<int32_t>(row));
    for (int64_t block = 0; block < max_blocks; ++block) table.push_back(static_cast<int32_t>(block));
  }
  const device::AttentionRows prepared =
      draw.ops().prepare({.sequence_of_row = int32s(sequence_of_row),
                          .row_position = int32s(position),
                          .block_table = int32s(table).view({std::ssize(rows), max_blocks}),
                          .group_offsets = {}});
  return draw.ops().paged_attention(take(draw, q, rows), kv_layer, prepared, {});
}

Tensor draw_tokens(const Draws& draw, const Tensor& logits, const Rows& rows) {
  std::vector<device::Draw> draws(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    draws[i] = {.seed = 3,
                .sample_id = static_cast<uint64_t>(rows[i]),
                .temperature = 0.8,
                .top_p = 0.95,
                .row = static_cast<int32_t>(i)};
  }
  const auto count = std::ssize(draws);
  const Tensor words =
      at::from_blob(draws.data(), {count * static_cast<int64_t>(sizeof(device::Draw))}, at::kByte).clone();
  const auto on_device = at::TensorOptions().device(draw.ops().device());
  const Tensor token = at::empty({count}, on_device.dtype(at::kInt)), logp = draw.zeros({count}),
               behavior = draw.zeros({count});
  draw.ops().sample(take(draw, logits, rows), draw.to_device(words), token, logp, behavior);
  return logp;
}

std::vector<RowOperation> row_operations(Draws& draw, const RowWidths& w) {
  const device::Ops& ops = draw.ops();
  const at::ScalarType dtype = draw.dtype();
  const auto host = [&draw](at::IntArrayRef shape, double scale = 1.0) { return draw.normal(shape, 0.0, scale).cpu(); };
  const int64_t T = kMostRows, qkv_width = (w.heads + 2 * w.kv_heads) * w.head_dim;
  const Tensor x = host({T, w.hidden}), y = host({T, w.hidden}), qkv = host({T, qkv_width}),
               wide = host({T, w.intermediate});
  const Tensor gate_up = host({T, 2 * w.intermediate}), q = host({T, w.heads, w.head_dim}),
               logits = draw.floats({T, w.vocab}, 4.0).cpu();
  const Tensor router_logits = draw.floats({T, kRowExperts}).cpu();
  const Tensor ids = draw.ids(T, w.vocab).cpu(), positions = draw.ids(T, 4000).cpu();
  const Tensor norm = draw.normal({w.hidden}, 1.0, 0.2), head_norm = draw.normal({w.head_dim}, 1.0, 0.2);
  const Tensor table = draw.normal({w.vocab, w.hidden}), w_qkv = draw.normal({qkv_width, w.hidden}, 0.0, 0.05);
  const Tensor w_gate_up = draw.normal({2 * w.intermediate, w.hidden}, 0.0, 0.05);
  const Tensor w_down = draw.normal({w.hidden, w.intermediate}, 0.0, 0.05), bias = draw.normal({w.hidden});
  const int64_t max_blocks = (T + device::kBlockTokens - 1) / device::kBlockTokens;
  const Tensor kv_layer = at::zeros({max_blocks, 2, w.kv_heads, w.head_dim * device::kBlockTokens},
                                    at::TensorOptions(dtype).device(ops.device()));
  std::vector<int32_t> slots(static_cast<size_t>(T));
  std::iota(slots.begin(), slots.end(), 0);
  ops.kv_append(kv_layer, draw.normal({T, w.kv_heads, w.head_dim}), draw.normal({T, w.kv_heads, w.head_dim}),
                draw.to_device(int32s(slots)), draw.to_device(int32s(slots)));
  const device::Ops::QkvShape shape = {
      .num_heads = w.heads, .num_kv_heads = w.kv_heads, .head_dim = w.head_dim, .rope_theta = 1e6, .eps = kEps};
  return {
      {"a product with qkv's width",
       [&draw, x, w_qkv, dtype](const Rows& r) { return draw.ops().linear(take(draw, x, r), w_qkv, dtype); }},
      {"a product with gate_up's width",
       [&draw, x, w_gate_up, dtype](const Rows& r) { return draw.ops().linear(take(draw, x, r), w_gate_up, dtype); }},
      {"a product with the head's width",
       [&draw, x, table](const Rows& r) { return draw.ops().linear(take(draw, x, r), table, at::kFloat); }},
      {"linear_add with down's width",
       [&draw, wide, w_down, y](const Rows& r) {
         return draw.ops().linear_add(take(draw, wide, r), w_down, take(draw, y, r));
       }},
      {"embedding", [&draw, table, ids](const Rows& r) { return draw.ops().embedding(table, take(draw, ids, r)); }},
      {"add", [&draw, x, y](const Rows& r) { return draw.ops().add(take(draw, x, r), take(draw, y, r)); }},
      {"add_bias",
       [&draw, x, bias](const Rows& r) {
         const Tensor sum = take(draw, x, r);
         draw.ops().add_bias(sum, bias);
         return sum;
       }},
      {"rms_norm", [&draw, x, norm](const Rows& r) { return draw.ops().rms_norm(take(draw, x, r), norm, kEps); }},
      {"qk_norm_rope",
       [&draw, qkv, head_norm, positions, shape](const Rows& r) {
         return draw.ops()
             .qk_norm_rope(take(draw, qkv, r), head_norm, head_norm, take(draw, positions, r), shape)
             .q_THK;
       }},
      {"rope",
       [&draw, qkv, positions, shape](const Rows& r) {
         return draw.ops().rope(take(draw, qkv, r), take(draw, positions, r), shape).k_TGK;
       }},
      {"silu_mul", [&draw, gate_up](const Rows& r) { return draw.ops().silu_mul(take(draw, gate_up, r)); }},
      {"experts",
       [&draw, x, router_logits, w_gate_up, dtype](const Rows& r) {
         const device::Ops& ops = draw.ops();
         const device::Routing routing = ops.route(take(draw, router_logits, r), {.chosen = 2, .normalises = true});
         const Tensor rows =
             ops.linear_of_experts(take(draw, x, r), device::RowsAre::kTokens, w_gate_up, routing, dtype);
         return ops.sum_of_experts(rows, routing.weights_TC, routing, {}, dtype);
       }},
      {"paged_attention",
       [&draw, q, kv_layer, max_blocks](const Rows& r) { return attend(draw, q, kv_layer, max_blocks, r); }},
      {"logprob",
       [&draw, logits, ids](const Rows& r) {
         const Tensor logp = draw.zeros({std::ssize(r)}), lse = draw.zeros({std::ssize(r)});
         draw.ops().logprob(take(draw, logits, r), take(draw, ids, r), 0.8, logp, {}, lse);
         return logp;
       }},
      {"sample", [&draw, logits](const Rows& r) { return draw_tokens(draw, logits, r); }},
  };
}

// The batches in which rows are computed: one row alone, few, parts, all in another order.
std::vector<Rows> batches() {
  Rows all(static_cast<size_t>(kMostRows));
  std::iota(all.begin(), all.end(), 0);
  std::vector<Rows> result = {{0}, {kMostRows - 1}, {5, 3, kMostRows - 1}};
  for (const int64_t size : {7, 33, 64, 256, 257}) result.emplace_back(all.end() - size, all.end());
  std::shuffle(all.begin(), all.end(), std::mt19937_64(11));
  result.push_back(std::move(all));
  return result;
}

}  // namespace

void ask_rows(const device::Ops& ops, const RowWidths& widths, Answers& answers) {
  answers.begin("rows");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Draws draw(ops, dtype, /*is_reference=*/false, /*seed=*/5);
    Rows every(static_cast<size_t>(kMostRows));
    std::iota(every.begin(), every.end(), 0);
    for (const RowOperation& operation : row_operations(draw, widths)) {
      const Tensor all = operation.run(every).cpu();
      Comparison comparison;
      for (const Rows& rows : batches()) {
        const Tensor index = at::from_blob(const_cast<int64_t*>(rows.data()), {std::ssize(rows)}, at::kLong);
        comparison += compare_bits(operation.run(rows), all.index_select(0, index));
      }
      answers.answer(fmt::format("{}, {}: alone, in parts, in another order", operation.name,
                                 dtype == at::kFloat ? "float32" : "bfloat16"),
                     comparison);
    }
  }
}

}  // namespace tandem::device_check
