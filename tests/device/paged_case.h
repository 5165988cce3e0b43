// Attention cases like the trainer's and the engine's (groups of sequences that share a prompt), and their placement in
// a paged cache. The layout inside a block is the backend's own, so tests reach it through kv_append alone.
#pragma once

#include <ATen/ops/full.h>

#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "tests/device/draw.h"

namespace tandem::device {

// Every token is a query row; rows of one group stand together: its prompt, then each completion.
struct PagedCase {
  reference::AttentionCase attention;
  reference::Ids group_offsets;  // row offsets: group u has rows [u, u + 1)
  int64_t num_tokens = 0;
};

// These lengths are on both sides of the 16 tokens of a block, and on it.
inline const std::vector<int64_t> kShortPrompts = {1, 7, 15, 16, 17, 32, 37};
// These are on both sides of the larger pieces in which a backend may walk a sequence.
inline const std::vector<int64_t> kLongPrompts = {255, 256, 257, 300, 513};

inline PagedCase draw_groups(TestDraw& draw, int64_t num_groups, int64_t H, int64_t G, int64_t K,
                             const std::vector<int64_t>& prompt_lengths = kShortPrompts,
                             int64_t most_completion_tokens = 20) {
  PagedCase c{.attention = {.H = H, .G = G, .K = K, .sequences = {}, .sequence_of_row = {}, .row_position = {}},
              .group_offsets = {0}};
  const auto add_row = [&](size_t sequence, reference::Ids& tokens) {
    c.attention.sequence_of_row.push_back(static_cast<int32_t>(sequence));
    c.attention.row_position.push_back(static_cast<int32_t>(tokens.size()));
    tokens.push_back(static_cast<int32_t>(c.num_tokens++));
  };
  for (int64_t group = 0; group < num_groups; ++group) {
    const int64_t prompt_tokens = draw.choose(prompt_lengths);
    const int64_t num_samples = draw.integer(1, 3);
    reference::Ids prompt;
    for (int64_t i = 0; i < prompt_tokens; ++i) add_row(c.attention.sequences.size(), prompt);
    for (int64_t sample = 0; sample < num_samples; ++sample) {
      c.attention.sequences.push_back(prompt);
      const int64_t completion_tokens = draw.integer(1, most_completion_tokens);
      for (int64_t i = 0; i < completion_tokens; ++i)
        add_row(c.attention.sequences.size() - 1, c.attention.sequences.back());
    }
    c.group_offsets.push_back(static_cast<int32_t>(c.num_tokens));
  }
  return c;
}

struct PagedCache {
  Tensor kv_layer;     // one layer of a block-major cache of three
  AttentionRows rows;  // kv_tokens and kv_slots are those for kv_append
  int64_t num_blocks = 0;
};

// Places a case in blocks of random numbers. With `share`, full blocks with the same tokens after the same prefix are
// one block; a partial one is each sequence's own. Numbers that no row may see are NaN in blocks that hold nothing and
// in other layers, and large in slots past a sequence's end.
inline PagedCache place(const PagedCase& c, TestDraw& draw, at::ScalarType dtype, bool share) {
  std::map<std::pair<int64_t, reference::Ids>, int64_t> block_of;  // (owner or -1, tokens up to the block's end)
  std::vector<reference::Ids> tables;
  reference::Ids tokens, slots;
  int64_t num_used = 0;
  for (size_t s = 0; s < c.attention.sequences.size(); ++s) {
    const reference::Ids& sequence = c.attention.sequences[s];
    tables.emplace_back();
    for (size_t begin = 0; begin < sequence.size(); begin += kBlockTokens) {
      const size_t end = begin + kBlockTokens;
      const bool shared = share && end <= sequence.size();
      const reference::Ids prefix(sequence.begin(),
                                  sequence.begin() + static_cast<int64_t>(std::min(end, sequence.size())));
      const auto [place, is_new] = block_of.try_emplace({shared ? -1 : static_cast<int64_t>(s), prefix}, num_used);
      tables.back().push_back(static_cast<int32_t>(place->second));
      if (!is_new) continue;
      ++num_used;
      for (size_t i = begin; i < prefix.size(); ++i) {
        tokens.push_back(prefix[i]);
        slots.push_back(static_cast<int32_t>(place->second * kBlockTokens + static_cast<int64_t>(i - begin)));
      }
    }
  }

  PagedCache cache;
  cache.num_blocks = num_used + 3;
  const reference::Ids number = draw.permutation(cache.num_blocks);  // blocks lie anywhere
  const int64_t block_values = c.attention.K * kBlockTokens;
  const Tensor storage = at::full({cache.num_blocks, 3, 2, c.attention.G, block_values},
                                  std::numeric_limits<float>::quiet_NaN(), at::TensorOptions(dtype));
  cache.kv_layer = storage.select(1, 1);
  for (int64_t block = 0; block < num_used; ++block)
    cache.kv_layer.select(0, number[static_cast<size_t>(block)])
        .copy_(draw.normal({2, c.attention.G, block_values}, dtype, 0.0, 100.0));
  for (int32_t& slot : slots) {
    const int32_t block = slot / static_cast<int32_t>(kBlockTokens);
    slot += (number[static_cast<size_t>(block)] - block) * static_cast<int32_t>(kBlockTokens);
  }
  size_t max_blocks = 0;
  for (const reference::Ids& table : tables) max_blocks = std::max(max_blocks, table.size());
  reference::Ids flat;
  for (reference::Ids& table : tables) {
    for (int32_t& block : table) block = number[static_cast<size_t>(block)];
    table.resize(max_blocks + 1, std::numeric_limits<int32_t>::max());  // entries past the end are not read
    flat.insert(flat.end(), table.begin(), table.end());
  }
  cache.rows = {.sequence_of_row = to_tensor(c.attention.sequence_of_row),
                .row_position = to_tensor(c.attention.row_position),
                .block_table = to_tensor(flat).view({static_cast<int64_t>(tables.size()), -1}),
                .group_offsets = to_tensor(c.group_offsets),
                .kv_tokens = to_tensor(tokens),
                .kv_slots = to_tensor(slots)};
  return cache;
}

}  // namespace tandem::device
