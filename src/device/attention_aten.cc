#include "device/attention_aten.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "device/ops_plan.h"
#include "device/transfer.h"

namespace tandem::device {
namespace {

constexpr int64_t kTileRows = kAttentionTileRows, kTileKeys = kAttentionTileKeys;
constexpr int64_t kTileBlocks = kTileKeys / kBlockTokens;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

using Sequence = AttentionTiles::Sequence;

Tensor to_float(const Tensor& x) { return x.to(at::kFloat); }

Tensor int64_tensor(const std::vector<int64_t>& values, at::IntArrayRef shape, at::Device device) {
  const Tensor host = at::empty(shape, at::kLong);
  TANDEM_CHECK_EQ(host.numel(), static_cast<int64_t>(values.size()));
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<int64_t>());
  return to_device(host, device);
}

// Holds the rows of a batch by sequence, as numbers on the host.
struct HostRows {
  std::vector<std::vector<int64_t>> members;  // indices of the rows of each sequence, in order
  std::vector<int64_t> positions;             // [T]
  Tensor block_table;                         // [S, max_blocks] int32
};
HostRows rows_by_sequence(const AttentionRows& rows) {
  const Tensor sequence = rows.sequence_of_row.to(at::kInt).contiguous();
  const Tensor position = rows.row_position.to(at::kInt).contiguous();
  TANDEM_CHECK(sequence.is_cpu() && position.is_cpu() && rows.block_table.is_cpu(),
               "the rows of attention are given on the host");
  HostRows host{.members = std::vector<std::vector<int64_t>>(static_cast<size_t>(rows.block_table.size(0))),
                .positions = {},
                .block_table = rows.block_table.to(at::kInt).contiguous()};
  for (int64_t t = 0; t < sequence.size(0); ++t) {
    const int32_t of_row = sequence.const_data_ptr<int32_t>()[t];
    host.positions.push_back(position.const_data_ptr<int32_t>()[t]);
    if (of_row < 0) continue;  // the row is in no tile
    const auto s = static_cast<size_t>(of_row);
    TANDEM_CHECK(s < host.members.size(), "attention row", t, "names sequence", s, "of", host.members.size());
    host.members[s].push_back(t);
    TANDEM_CHECK(host.positions.back() / kBlockTokens < rows.block_table.size(1), "position", host.positions.back(),
                 "lies past the block table");
  }
  return host;
}

int64_t last_position(const HostRows& host, const int64_t* begin, const int64_t* end) {
  int64_t last = 0;
  for (const int64_t* row = begin; row != end; ++row) last = std::max(last, host.positions[static_cast<size_t>(*row)]);
  return last;
}

int64_t first_position(const HostRows& host, const int64_t* begin, const int64_t* end) {
  int64_t first = host.positions[static_cast<size_t>(*begin)];
  for (const int64_t* row = begin; row != end; ++row) {
    first = std::min(first, host.positions[static_cast<size_t>(*row)]);
  }
  return first;
}

// A tile of query rows, before it is laid out.
struct Tile {
  const int64_t* begin;
  const int64_t* end;
  int64_t sequence = 0, last_position = 0;
  int64_t levels() const { return last_position / kTileKeys + 1; }
};

std::vector<Tile> cut_into_tiles(const HostRows& host) {
  std::vector<Tile> tiles;
  for (size_t s = 0; s < host.members.size(); ++s) {
    const int64_t* const rows = host.members[s].data();
    const auto count = static_cast<int64_t>(host.members[s].size());
    for (int64_t begin = 0; begin < count; begin += kTileRows) {
      Tile tile{
          .begin = rows + begin, .end = rows + std::min(begin + kTileRows, count), .sequence = static_cast<int64_t>(s)};
      tile.last_position = last_position(host, tile.begin, tile.end);
      tiles.push_back(tile);
    }
  }
  std::stable_sort(tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) { return a.levels() > b.levels(); });
  return tiles;
}

std::vector<Sequence> plan_backward(const HostRows& host, at::Device device) {
  std::vector<Sequence> sequences;
  for (size_t s = 0; s < host.members.size(); ++s) {
    const std::vector<int64_t>& members = host.members[s];
    if (members.empty()) continue;
    const int64_t num_blocks = last_position(host, members.data(), members.data() + members.size()) / kBlockTokens + 1;
    std::vector<int64_t> positions;
    for (const int64_t row : members) positions.push_back(host.positions[static_cast<size_t>(row)]);
    const auto num_rows = static_cast<int64_t>(members.size());
    const Tensor keys = at::arange(num_blocks * kBlockTokens, at::TensorOptions(at::kLong).device(device));
    Sequence sequence;
    sequence.rows = int64_tensor(members, {num_rows}, device);
    sequence.blocks =
        to_device(host.block_table.select(0, static_cast<int64_t>(s)).narrow(0, 0, num_blocks).to(at::kLong), device);
    sequence.hidden = keys.unsqueeze(0).gt(int64_tensor(positions, {num_rows, 1}, device));
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

// Counts the heads of q. Query head h reads KV head h / per_group.
struct Heads {
  int64_t num_kv_heads, per_group, head_dim;
};
Heads heads_of(const Tensor& q_THK, const Tensor& kv_layer) {
  return {kv_layer.size(2), q_THK.size(1) / kv_layer.size(2), q_THK.size(2)};
}

// Returns keys (half 0) or values (half 1) in `blocks` [n, m]: [n * G, m * kBlockTokens, K] float32.
Tensor gather_blocks(const Tensor& slots_B2GPK, const Tensor& blocks, int64_t half) {
  const int64_t n = blocks.size(0), m = blocks.size(1), G = slots_B2GPK.size(2), K = slots_B2GPK.size(4);
  const Tensor gathered = to_float(slots_B2GPK.select(1, half).index_select(0, blocks.reshape({-1})));
  return gathered.view({n, m, G, kBlockTokens, K}).transpose(1, 2).reshape({n * G, m * kBlockTokens, K});
}

// Returns keys or values of a sequence: [G, keys, K] float32. Slots after the last position may hold anything, even
// NaN, which a weight of zero does not silence, so they are zeroed.
Tensor gather_keys(const Tensor& slots_B2GPK, const Sequence& sequence, int64_t half) {
  const Tensor unseen = sequence.hidden.all(0).view({1, -1, 1});
  return gather_blocks(slots_B2GPK, sequence.blocks.unsqueeze(0), half).masked_fill_(unseen, 0.0F);
}

// Groups the [T, H, K] rows of a sequence by their KV head: [G, R * (H / G), K] float32.
Tensor group_heads(const Tensor& x_THK, const Sequence& sequence, int64_t num_kv_heads) {
  const int64_t num_rows = sequence.rows.size(0), per_group = x_THK.size(1) / num_kv_heads, head_dim = x_THK.size(2);
  const Tensor rows = to_float(x_THK.index_select(0, sequence.rows));
  return rows.view({num_rows, num_kv_heads, per_group, head_dim}).transpose(0, 1).reshape({num_kv_heads, -1, head_dim});
}

// Undoes group_heads(): [G, R * (H / G), X] becomes [R, H, X].
Tensor ungroup_heads(const Tensor& x, int64_t num_rows) {
  const int64_t num_kv_heads = x.size(0), per_group = x.size(1) / num_rows;
  return x.view({num_kv_heads, num_rows, per_group, x.size(2)})
      .transpose(0, 1)
      .reshape({num_rows, num_kv_heads * per_group, x.size(2)});
}

// Returns which keys a row of a sequence does not see: those after its position, and those before its window. A key
// lies before the window if the one that is `window` keys later does not lie after the position.
Tensor hidden_keys(const Sequence& sequence, int64_t window) {
  const int64_t num_keys = sequence.hidden.size(1);
  if (window == 0 || window >= num_keys) return sequence.hidden;
  const Tensor hidden = sequence.hidden.clone();
  hidden.narrow(1, 0, num_keys - window)
      .logical_or_(sequence.hidden.narrow(1, window, num_keys - window).logical_not());
  return hidden;
}

// Returns q k^T / sqrt(K) with the keys that a row does not see at -inf: [G, R * (H / G), keys].
Tensor masked_scores(const Tensor& q, const Tensor& k, const Sequence& sequence, int64_t window) {
  const Tensor scores = at::bmm(q, k.transpose(1, 2)).div_(std::sqrt(static_cast<double>(q.size(2))));
  const int64_t num_rows = sequence.rows.size(0), num_keys = k.size(1);
  scores.view({q.size(0), num_rows, -1, num_keys})
      .masked_fill_(hidden_keys(sequence, window).view({1, num_rows, 1, num_keys}), kMinusInfinity);
  return scores;
}

// Adds [G, keys, K] to the blocks of a sequence; this is the transpose of gather_keys.
void scatter_keys(const Tensor& dcache, const Sequence& sequence, int64_t half, const Tensor& dkeys) {
  const int64_t num_kv_heads = dkeys.size(0), head_dim = dkeys.size(2);
  const Tensor blocks = dkeys.view({num_kv_heads, -1, kBlockTokens, head_dim}).transpose(0, 1);
  // A sequence names a block once, so there is one addition an element, on every device in the same order.
  dcache.select(1, half).index_add_(0, sequence.blocks, blocks);
}

}  // namespace

Tensor as_slots(const Tensor& kv_layer) {
  return kv_layer.view({kv_layer.size(0), 2, kv_layer.size(2), kBlockTokens, kv_layer.size(3) / kBlockTokens});
}

std::shared_ptr<const AttentionTiles> AttentionAten::plan(const AttentionRows& rows) const {
  const HostRows host = rows_by_sequence(rows);
  const std::vector<Tile> tiles = cut_into_tiles(host);
  const auto num_tiles = static_cast<int64_t>(tiles.size()), num_rows = static_cast<int64_t>(host.positions.size());
  const int64_t padded = (num_tiles + tiles_per_call_ - 1) / tiles_per_call_ * tiles_per_call_;
  const int64_t levels = tiles.empty() ? 0 : tiles.front().levels();
  auto plan = std::make_shared<AttentionTiles>();
  plan->num_active.assign(static_cast<size_t>(levels), 0);
  std::vector<int64_t> tile_rows(static_cast<size_t>(padded * kTileRows), num_rows), positions(tile_rows.size(), 0);
  std::vector<int64_t> first_positions(static_cast<size_t>(padded), 0), last_positions = first_positions;
  std::vector<int64_t> blocks(static_cast<size_t>(padded * levels * kTileBlocks), 0), place(host.positions.size());
  const int32_t* const table = host.block_table.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < num_tiles; ++i) {
    const Tile& tile = tiles[static_cast<size_t>(i)];
    for (const int64_t* row = tile.begin; row != tile.end; ++row) {
      const auto at = static_cast<size_t>(i * kTileRows + (row - tile.begin));
      tile_rows[at] = *row;
      positions[at] = host.positions[static_cast<size_t>(*row)];
      place[static_cast<size_t>(*row)] = static_cast<int64_t>(at);
    }
    first_positions[static_cast<size_t>(i)] = first_position(host, tile.begin, tile.end);
    last_positions[static_cast<size_t>(i)] = tile.last_position;
    const int32_t* const own = table + tile.sequence * host.block_table.size(1);
    std::copy_n(own, tile.last_position / kBlockTokens + 1, blocks.begin() + i * levels * kTileBlocks);
    for (int64_t level = 0; level < tile.levels(); ++level) ++plan->num_active[static_cast<size_t>(level)];
  }
  plan->rows = int64_tensor(tile_rows, {padded, kTileRows}, device_);
  plan->positions = int64_tensor(positions, {padded, kTileRows}, device_);
  plan->first_positions = int64_tensor(first_positions, {padded}, device_);
  plan->last_positions = int64_tensor(last_positions, {padded}, device_);
  plan->blocks = int64_tensor(blocks, {padded, levels * kTileBlocks}, device_);
  plan->place_of_row = int64_tensor(place, {num_rows}, device_);
  if (rows.kv_tokens.defined()) {
    plan->sequences = plan_backward(host, device_);
    plan->kv_tokens = to_device(rows.kv_tokens.to(at::kLong), device_);
    plan->kv_slots = to_device(rows.kv_slots.to(at::kLong), device_);
  }
  return plan;
}

Tensor AttentionAten::forward(const Tensor& q_THK, const Tensor& kv_layer, const AttentionTiles& tiles, int64_t window,
                              const Tensor& lse_TH) const {
  if (q_THK.size(0) == 0) return at::empty_like(q_THK);
  const auto [G, P, K] = heads_of(q_THK, kv_layer);
  const int64_t Q = tiles.rows.size(0), R = kTileRows, M = R * P, B = tiles_per_call_;
  const Tensor cache = as_slots(kv_layer);
  const Tensor nothing = at::zeros({1, q_THK.size(1), K}, q_THK.options());
  const Tensor q = to_float(at::cat({q_THK, nothing}).index_select(0, tiles.rows.view(-1)))
                       .view({Q, R, G, P, K})
                       .transpose(1, 2)
                       .reshape({Q * G, M, K});
  const Tensor out = at::zeros({Q * G, M, K}, q.options()), total = at::zeros({Q * G, M, 1}, q.options());
  const Tensor maximum = at::full({Q * G, M, 1}, kMinusInfinity, q.options());
  const Tensor zero = at::zeros({1}, q.options());
  const double scale = 1.0 / std::sqrt(static_cast<double>(K));
  for (size_t level = 0; level < tiles.num_active.size(); ++level) {
    const int64_t first_key = static_cast<int64_t>(level) * kTileKeys;
    const Tensor keys = at::arange(first_key, first_key + kTileKeys, tiles.positions.options());
    for (int64_t begin = 0; begin < tiles.num_active[level]; begin += B) {
      const auto of_call = [&](const Tensor& x) { return x.narrow(0, begin * G, B * G); };
      const Tensor blocks = tiles.blocks.narrow(0, begin, B).narrow(1, first_key / kBlockTokens, kTileBlocks);
      const Tensor positions = tiles.positions.narrow(0, begin, B).view({B, 1, R, 1, 1});
      const Tensor hidden = keys.gt(positions);
      if (window > 0) hidden.logical_or_(keys.le(positions - window));
      const Tensor unseen = keys.gt(tiles.last_positions.narrow(0, begin, B).view({B, 1, 1}));
      if (window > 0) {
        unseen.logical_or_(keys.le(tiles.first_positions.narrow(0, begin, B).view({B, 1, 1}) - window));
      }
      const Tensor k = gather_blocks(cache, blocks, 0), v = gather_blocks(cache, blocks, 1);
      v.view({B, G, kTileKeys, K}).masked_fill_(unseen.unsqueeze(-1), 0.0F);
      const Tensor scores = at::bmm(of_call(q), k.transpose(1, 2));
      // Adding 0 times the score to itself turns -inf into NaN; -inf alone would look like a key that is not there.
      scores.addcmul_(scores, zero).mul_(scale);
      scores.view({B, G, R, P, kTileKeys}).masked_fill_(hidden, kMinusInfinity);

      const Tensor before = of_call(maximum), now = at::maximum(before, scores.amax(-1, /*keepdim=*/true));
      // A row that sees none of these keys has no maximum yet, and -inf less -inf would be NaN.
      if (window > 0) now.clamp_min_(std::numeric_limits<float>::lowest());
      const Tensor shrink = (before - now).exp_(), weights = scores.sub_(now).exp_();
      of_call(total).mul_(shrink).add_(weights.sum(-1, /*keepdim=*/true));
      of_call(out).mul_(shrink).add_(at::bmm(weights, v));
      before.copy_(now);
    }
  }
  // Turns [Q * G, M, X] into rows [T, H, X].
  const auto rows_of = [&](const Tensor& x) {
    const Tensor by_place = x.view({Q, G, R, P, -1}).transpose(1, 2).reshape({Q * R, G * P, x.size(2)});
    return by_place.index_select(0, tiles.place_of_row);
  };
  if (lse_TH.defined()) lse_TH.copy_(rows_of(maximum + total.log()).squeeze(-1));
  return rows_of(out.div_(total)).to(q_THK.scalar_type());
}

Tensor AttentionAten::backward(const Tensor& dout_THK, const Tensor& q_THK, const Tensor& out_THK, const Tensor& lse_TH,
                               const Tensor& kv_layer, const AttentionTiles& tiles, int64_t window,
                               const Tensor& dkv) const {
  const Tensor cache = as_slots(kv_layer), dcache = as_slots(dkv), dq_THK = at::empty_like(q_THK);
  const int64_t num_kv_heads = kv_layer.size(2);
  const double scale = 1.0 / std::sqrt(static_cast<double>(q_THK.size(2)));
  for (const Sequence& sequence : tiles.sequences) {
    const Tensor q = group_heads(q_THK, sequence, num_kv_heads), dout = group_heads(dout_THK, sequence, num_kv_heads);
    const Tensor k = gather_keys(cache, sequence, 0), v = gather_keys(cache, sequence, 1);
    const Tensor lse = group_heads(lse_TH.unsqueeze(-1), sequence, num_kv_heads);
    const Tensor probability = masked_scores(q, k, sequence, window).sub_(lse).exp_();
    // This is sum_j p_j dp_j, which is dout . out because out = sum_j p_j v_j.
    const Tensor mean_dprobability = (dout * group_heads(out_THK, sequence, num_kv_heads)).sum(-1, /*keepdim=*/true);
    const Tensor dscores = at::bmm(dout, v.transpose(1, 2)).sub_(mean_dprobability).mul_(probability).mul_(scale);
    const Tensor dq = ungroup_heads(at::bmm(dscores, k), sequence.rows.size(0));
    dq_THK.index_copy_(0, sequence.rows, dq.to(q_THK.scalar_type()));
    scatter_keys(dcache, sequence, 0, at::bmm(dscores.transpose(1, 2), q));
    scatter_keys(dcache, sequence, 1, at::bmm(probability.transpose(1, 2), dout));
  }
  return dq_THK;
}

}  // namespace tandem::device
