#include "device/cuda/attention/attention_work.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "device/block.h"

namespace tandem::device::cuda {
namespace {

struct Run {
  int64_t sequence, begin, num_rows, num_keys;
};

std::vector<Run> cut_into_runs(const PagedRows& rows) {
  std::vector<Run> runs;
  int64_t next_position = 0;  // position of a row that would prolong the last run
  for (int64_t t = 0; t < rows.num_rows; ++t) {
    const int64_t sequence = rows.sequence_of_row[t];
    const bool fills_up = sequence == -1;
    const int64_t position = fills_up ? -1 : rows.row_position[t];
    if (!fills_up) {
      TANDEM_CHECK(sequence >= 0 && sequence < rows.num_sequences, "attention row", t, "names sequence", sequence, "of",
                   rows.num_sequences);
      TANDEM_CHECK(position >= 0 && position / kBlockTokens < rows.max_blocks, "position", position, "of row", t,
                   "lies past the block table");
    }
    if (runs.empty() || runs.back().sequence != sequence || (!fills_up && position != next_position)) {
      runs.push_back({.sequence = sequence, .begin = t, .num_rows = 0, .num_keys = 0});
    }
    ++runs.back().num_rows;
    runs.back().num_keys = position + 1;
    next_position = position + 1;
  }
  return runs;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns the number of keys, in whole steps, that two runs of one row both see, in the same blocks.
int64_t count_shared(const PagedRows& rows, const Run& a, const Run& b, int64_t step) {
  if (a.num_rows != 1 || b.num_rows != 1 || a.sequence == -1 || b.sequence == -1) return 0;
  const int32_t* const begin = rows.block_table + a.sequence * rows.max_blocks;
  const int32_t* const end = begin + std::min(a.num_keys, b.num_keys) / kBlockTokens;
  const auto blocks = std::mismatch(begin, end, rows.block_table + b.sequence * rows.max_blocks).first - begin;
  return blocks * kBlockTokens / step * step;
}

// Rows that are computed together: a run, or several runs of one row each that share keys.
struct Rows {
  int64_t begin, num_rows, shared, num_keys;  // num_keys: all keys that they walk
};

// Cuts the order of runs where it saves the most keys, with at most `most` runs together. shared[r] is for runs r and
// r + 1.
std::vector<Rows> put_together(const std::vector<Run>& runs, const std::vector<int64_t>& shared, int64_t most) {
  struct Best {
    int64_t saved, num_runs, shared;  // keys that the first runs save; size and shared keys of their last item
  };
  std::vector<Best> best = {{.saved = 0, .num_runs = 0, .shared = 0}};
  best.reserve(runs.size() + 1);
  for (size_t end = 1; end <= runs.size(); ++end) {
    best.push_back({.saved = best.back().saved, .num_runs = 1, .shared = 0});
    int64_t all_share = std::numeric_limits<int64_t>::max();
    for (int64_t n = 2; n <= std::min(most, static_cast<int64_t>(end)); ++n) {
      const size_t begin = end - static_cast<size_t>(n);
      all_share = std::min(all_share, shared[begin]);
      if (all_share == 0) break;
      const int64_t saved = best[begin].saved + (n - 1) * all_share;
      if (saved > best[end].saved) best[end] = {.saved = saved, .num_runs = n, .shared = all_share};
    }
  }
  std::vector<Rows> together;
  together.reserve(runs.size());
  for (size_t end = runs.size(); end > 0; end -= static_cast<size_t>(best[end].num_runs)) {
    const size_t begin = end - static_cast<size_t>(best[end].num_runs);
    Rows rows = {.begin = runs[begin].begin, .num_rows = 0, .shared = best[end].shared, .num_keys = best[end].shared};
    for (size_t r = begin; r < end; ++r) {
      rows.num_rows += runs[r].num_rows;
      rows.num_keys += runs[r].num_keys - rows.shared;
    }
    together.push_back(rows);
  }
  std::reverse(together.begin(), together.end());
  return together;
}

// Estimates how long a GPU takes, in keys: it distributes items, and one item is not split.
double estimate(const std::vector<Rows>& together, const AttentionHeads& heads, int64_t at_once) {
  int64_t total = 0, longest = 0;
  for (const Rows& rows : together) {
    total += rows.num_keys * ceil_div(rows.num_rows * heads.group, kAttentionTile);
    longest = std::max(longest, rows.num_keys);
  }
  return std::max(static_cast<double>(total * heads.num_kv_heads) / static_cast<double>(at_once),
                  static_cast<double>(longest));
}

}  // namespace

AttentionWork::AttentionWork(int64_t num_rows, int64_t num_sequences, int64_t max_blocks)
    : num_rows(num_rows), num_sequences(num_sequences), max_blocks(max_blocks) {
  int64_t end = 0;
  const auto take = [&end](int64_t words) { return std::exchange(end, end + words); };
  item_row = take(num_rows);
  item_rows = take(num_rows);
  item_tile = take(num_rows);
  item_shared = take(num_rows);
  row_keys = take(num_rows);
  row_page = take(num_rows);
  table = take(num_sequences * max_blocks);
  counters = take(2);
  num_words = end;
}

AttentionWork build_work(const PagedRows& rows, const AttentionHeads& heads, int32_t* words, const WorkLimits& limits) {
  const int64_t group = heads.group;
  TANDEM_CHECK(group >= 1 && group <= kMaxAttentionGroup, "query heads of a KV head:", group);
  AttentionWork work(rows.num_rows, rows.num_sequences, rows.max_blocks);
  work.heads = heads;
  const std::vector<Run> runs = cut_into_runs(rows);
  std::vector<int64_t> shared;
  for (size_t r = 0; r + 1 < runs.size(); ++r) {
    shared.push_back(count_shared(rows, runs[r], runs[r + 1], attention_step(heads.head_dim)));
  }
  const int64_t most = kAttentionTile / group, most_sequences = limits.most_sequences;
  const bool any_shared = std::any_of(shared.begin(), shared.end(), [](int64_t keys) { return keys > 0; });
  std::vector<Rows> together = put_together(runs, shared, most_sequences > 0 ? std::min(most, most_sequences) : most);
  for (int64_t fewer = most / 2; any_shared && most_sequences == 0 && fewer > 0; fewer /= 2) {
    std::vector<Rows> others = put_together(runs, shared, fewer);
    if (estimate(others, heads, limits.at_once) < estimate(together, heads, limits.at_once))
      together = std::move(others);
  }
  // They are sorted before they are cut into items: tiles of one run read the same keys, and should do so together.
  std::stable_sort(together.begin(), together.end(),
                   [](const Rows& a, const Rows& b) { return a.num_keys > b.num_keys; });

  std::fill_n(words + work.item_row, rows.num_rows, -1);
  std::fill(words + work.item_rows, words + work.num_words, 0);
  const auto add_items = [&](const Rows& item, int64_t num_tiles) {
    for (int64_t tile = num_tiles - 1; tile >= 0; --tile) {
      words[work.item_row + work.num_items] = static_cast<int32_t>(item.begin);
      words[work.item_rows + work.num_items] = static_cast<int32_t>(item.num_rows);
      words[work.item_tile + work.num_items] = static_cast<int32_t>(tile);
      words[work.item_shared + work.num_items] = static_cast<int32_t>(item.shared);
      ++work.num_items;
    }
  };
  const int64_t large_rows = kLargeTile / group;
  const auto is_large = [&](const Rows& item) {
    return limits.large_items && item.num_rows >= large_rows && item.num_keys > 0;
  };
  for (const Rows& item : together) {
    if (is_large(item)) add_items(item, ceil_div(item.num_rows, large_rows));
  }
  work.num_large_items = work.num_items;
  for (const Rows& item : together) {
    if (!is_large(item)) add_items(item, ceil_div(item.num_rows * group, kAttentionTile));
  }
  for (const Run& run : runs) {
    if (run.sequence == -1) continue;
    const int64_t page = run.sequence * rows.max_blocks;
    for (int64_t i = 0; i < run.num_rows; ++i) {
      words[work.row_keys + run.begin + i] = static_cast<int32_t>(run.num_keys - run.num_rows + 1 + i);
      words[work.row_page + run.begin + i] = static_cast<int32_t>(page);
    }
    std::copy_n(rows.block_table + page, ceil_div(run.num_keys, kBlockTokens), words + work.table + page);
  }
  return work;
}

AttentionWork build_work(const PagedRows& rows, const AttentionHeads& heads, std::vector<int32_t>& words,
                         const WorkLimits& limits) {
  words.resize(static_cast<size_t>(AttentionWork(rows.num_rows, rows.num_sequences, rows.max_blocks).num_words));
  return build_work(rows, heads, words.data(), limits);
}

ExpandedRows expand_rows(const PagedRows& rows, const int32_t* kv_tokens, const int32_t* kv_slots, int64_t num_kv) {
  ExpandedRows expanded{.cu_q = {0}, .cu_k = {0}, .slots = {}, .token_offsets = {}, .expanded_rows_of_token = {}};
  for (const Run& run : cut_into_runs(rows)) {
    for (int64_t p = 0; p < run.num_keys; ++p) {
      const int64_t block = rows.block_table[run.sequence * rows.max_blocks + p / kBlockTokens];
      expanded.slots.push_back(static_cast<int32_t>(block * kBlockTokens + p % kBlockTokens));
    }
    expanded.cu_q.push_back(static_cast<int32_t>(run.begin + run.num_rows));
    expanded.cu_k.push_back(static_cast<int32_t>(expanded.slots.size()));
    expanded.max_q = std::max(expanded.max_q, run.num_rows);
    expanded.max_k = std::max(expanded.max_k, run.num_keys);
  }

  int32_t last_slot = -1;
  for (int64_t i = 0; i < num_kv; ++i) last_slot = std::max(last_slot, kv_slots[i]);
  std::vector<int32_t> token_of_slot(static_cast<size_t>(last_slot) + 1, -1);
  for (int64_t i = 0; i < num_kv; ++i) {
    if (kv_slots[i] < 0) continue;
    TANDEM_CHECK(kv_tokens[i] >= 0 && kv_tokens[i] < rows.num_rows, "slot", kv_slots[i], "has token", kv_tokens[i]);
    int32_t& token = token_of_slot[static_cast<size_t>(kv_slots[i])];
    TANDEM_CHECK(token == -1 || token == kv_tokens[i], "slot", kv_slots[i], "has tokens", token, "and", kv_tokens[i]);
    token = kv_tokens[i];
  }
  const auto token_of = [&](int32_t slot) { return slot > last_slot ? -1 : token_of_slot[static_cast<size_t>(slot)]; };

  // Rows are counted, then laid out: the rows of a token stay in their order.
  expanded.token_offsets.assign(static_cast<size_t>(rows.num_rows) + 1, 0);
  for (const int32_t slot : expanded.slots) {
    if (token_of(slot) >= 0) ++expanded.token_offsets[static_cast<size_t>(token_of(slot)) + 1];
  }
  for (size_t t = 1; t < expanded.token_offsets.size(); ++t) expanded.token_offsets[t] += expanded.token_offsets[t - 1];
  expanded.expanded_rows_of_token.resize(static_cast<size_t>(expanded.token_offsets.back()));
  std::vector<int32_t> next(expanded.token_offsets.begin(), expanded.token_offsets.end() - 1);
  for (size_t i = 0; i < expanded.slots.size(); ++i) {
    const int32_t token = token_of(expanded.slots[i]);
    if (token < 0) continue;
    expanded.expanded_rows_of_token[static_cast<size_t>(next[static_cast<size_t>(token)]++)] = static_cast<int32_t>(i);
  }
  return expanded;
}

}  // namespace tandem::device::cuda
