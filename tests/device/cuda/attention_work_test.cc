// Work lists of paged attention, read as the kernels read them.
#include "device/cuda/attention/attention_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <random>
#include <set>
#include <utility>

#include "device/block.h"
#include "tandem/error.h"

namespace tandem::device::cuda {
namespace {

using Ids = std::vector<int32_t>;
constexpr uint64_t kWorkSeed = 20240607;
constexpr int32_t kNotRead = std::numeric_limits<int32_t>::max();

struct Batch {
  Ids sequence = {}, position = {}, table = {};
  int64_t num_sequences = 0, max_blocks = 0;
  PagedRows rows() const {
    return {.sequence_of_row = sequence.data(),
            .row_position = position.data(),
            .num_rows = static_cast<int64_t>(sequence.size()),
            .block_table = table.data(),
            .num_sequences = num_sequences,
            .max_blocks = max_blocks};
  }
};

// Returns sequences of `lengths` tokens in blocks of their own, without rows.
Batch sequences_of(const std::vector<int64_t>& lengths) {
  Batch batch{.num_sequences = static_cast<int64_t>(lengths.size())};
  for (const int64_t length : lengths) {
    batch.max_blocks = std::max(batch.max_blocks, (length + kBlockTokens - 1) / kBlockTokens + 1);
  }
  int32_t block = 100;
  for (const int64_t length : lengths) {
    for (int64_t b = 0; b < batch.max_blocks; ++b)
      batch.table.push_back(b * kBlockTokens < length ? block++ : kNotRead);
  }
  return batch;
}

void add_rows(Batch& batch, int32_t sequence, int64_t begin, int64_t end) {
  for (int64_t p = begin; p < end; ++p) {
    batch.sequence.push_back(sequence);
    batch.position.push_back(static_cast<int32_t>(p));
  }
}

// Expects that every row and head is in one item and sees the keys of its sequence up to its position: those that the
// item's rows share, in blocks that they do share, and its own. Returns how many items are of sequences that share
// keys.
int64_t expect_covered(const Batch& batch, const AttentionHeads& heads, const WorkLimits& limits = {}) {
  const int64_t most_sequences = limits.most_sequences;
  Ids words;
  const AttentionWork work = build_work(batch.rows(), heads, words, limits);
  EXPECT_EQ(static_cast<int64_t>(words.size()), work.num_words);
  EXPECT_EQ(work.heads, heads);
  const auto word = [&](int64_t field, int64_t index) { return words.at(static_cast<size_t>(field + index)); };
  const int64_t group = heads.group;
  std::set<std::pair<int64_t, int64_t>> seen;  // (row, query head)
  int64_t num_sharing = 0;
  for (int64_t i = 0; i < work.num_rows; ++i) {
    const int64_t begin = word(work.item_row, i);
    EXPECT_EQ(begin >= 0, i < work.num_items) << "item " << i;
    if (begin < 0) continue;
    const int64_t count = word(work.item_rows, i), shared = word(work.item_shared, i);
    const int64_t run_keys = word(work.row_keys, begin + count - 1);
    EXPECT_EQ(shared % attention_step(heads.head_dim), 0);
    if (shared > 0) {
      ++num_sharing;
      EXPECT_EQ(word(work.item_tile, i), 0);
      EXPECT_GE(count, 2);
      EXPECT_LE(count * group, kAttentionTile);
      EXPECT_LE(count, most_sequences > 0 ? most_sequences : kAttentionTile);
    }
    const bool is_large = i < work.num_large_items;
    if (is_large) {
      EXPECT_TRUE(limits.large_items);
      EXPECT_EQ(shared, 0);
      EXPECT_GE(count * group, kLargeTile - group + 1);
    }
    // A large item has whole rows.
    const int64_t tile = is_large ? kLargeTile / group * group : kAttentionTile;
    bool has_rows = false;
    for (int64_t at = 0; at < tile; ++at) {
      const int64_t packed = word(work.item_tile, i) * tile + at, row = begin + packed / group;
      if (packed / group >= count) continue;
      has_rows = true;
      EXPECT_TRUE(seen.emplace(row, packed % group).second) << "row " << row << " twice";
      const int32_t sequence = batch.sequence.at(static_cast<size_t>(row));
      const int64_t keys = word(work.row_keys, row);
      if (sequence == -1) {
        EXPECT_EQ(keys, 0);
        EXPECT_EQ(shared, 0);
        continue;
      }
      EXPECT_EQ(keys - 1, batch.position.at(static_cast<size_t>(row)));
      EXPECT_LE(shared, keys);
      EXPECT_TRUE(shared > 0 || keys == run_keys - count + 1 + packed / group);
      for (int64_t p = 0; p < keys; p += kBlockTokens) {
        const int64_t walker = p < shared || shared == 0 ? begin : row;
        EXPECT_EQ(word(work.table, word(work.row_page, walker) + p / kBlockTokens),
                  batch.table.at(static_cast<size_t>(sequence * batch.max_blocks + p / kBlockTokens)));
      }
    }
    EXPECT_TRUE(has_rows) << "item " << i << " is empty";
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), work.num_rows * group);
  for (int64_t i = 0; i < batch.num_sequences * batch.max_blocks; ++i) EXPECT_NE(word(work.table, i), kNotRead);
  EXPECT_EQ(word(work.counters, 0), 0);
  EXPECT_EQ(word(work.counters, 1), 0);
  return num_sharing;
}

// Does the same as sequences_of(), but sequence s has the first blocks[s] blocks of the one before.
Batch sharing(const std::vector<int64_t>& lengths, const std::vector<int64_t>& blocks) {
  Batch batch = sequences_of(lengths);
  for (size_t s = 1; s < lengths.size(); ++s) {
    const auto row = batch.table.begin() + static_cast<int64_t>(s) * batch.max_blocks;
    std::copy_n(row - batch.max_blocks, blocks[s], row);
  }
  return batch;
}

// Adds the last row of each sequence.
void add_last_rows(Batch& batch, const std::vector<int64_t>& lengths) {
  for (size_t s = 0; s < lengths.size(); ++s) add_rows(batch, static_cast<int32_t>(s), lengths[s] - 1, lengths[s]);
}

// An item in its order: (first row, rows, keys shared).
using Item = std::array<int32_t, 3>;
std::vector<Item> items_of(const Batch& batch, const AttentionHeads& heads, int64_t most_sequences = 0) {
  Ids words;
  const AttentionWork work = build_work(batch.rows(), heads, words, {.most_sequences = most_sequences});
  std::vector<Item> items;
  for (int64_t i = 0; i < work.num_items; ++i) {
    const auto word = [&](int64_t field) { return words.at(static_cast<size_t>(field + i)); };
    items.push_back({word(work.item_row), word(work.item_rows), word(work.item_shared)});
  }
  return items;
}

TEST(AttentionWork, CoversEachRowAndHeadOnce) {
  std::mt19937_64 random(kWorkSeed);
  const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(random); };
  for (int64_t group = 1; group <= kMaxAttentionGroup; ++group) {
    SCOPED_TRACE(testing::Message() << "group " << group << ", seed " << kWorkSeed);
    const std::vector<int64_t> lengths = {1, 15, 16, 17, 100, 64};
    Batch batch = sequences_of(lengths);
    for (int piece = 0; piece < 30; ++piece) {
      const int64_t sequence = draw(-1, 5);
      if (sequence == -1) {
        add_rows(batch, -1, 0, draw(1, 3));
      } else {
        const int64_t begin = draw(0, lengths[static_cast<size_t>(sequence)] - 1);
        add_rows(batch, static_cast<int32_t>(sequence), begin, draw(begin + 1, lengths[static_cast<size_t>(sequence)]));
      }
    }
    expect_covered(batch, {.group = group});
    expect_covered(batch, {.group = group}, {.large_items = true});
  }
}

TEST(AttentionWork, CoversRowsOfSequencesThatShareBlocks) {
  std::mt19937_64 random(kWorkSeed);
  const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(random); };
  int64_t num_sharing = 0;
  for (int trial = 0; trial < 200; ++trial) {
    SCOPED_TRACE(testing::Message() << "trial " << trial << ", seed " << kWorkSeed);
    std::vector<int64_t> lengths, blocks;
    while (lengths.size() < 24) {
      const int64_t prompt = draw(1, 900), samples = draw(1, 9);
      for (int64_t i = 0; i < samples; ++i) {
        lengths.push_back(prompt + draw(1, 300));
        const int64_t most = lengths.size() < 2 ? 0 : std::min(lengths.back(), lengths[lengths.size() - 2]) / 16;
        blocks.push_back(std::min(most, i == 0 ? draw(0, 20) : prompt / kBlockTokens + (draw(0, 9) == 0 ? 4 : 0)));
      }
    }
    Batch batch = sharing(lengths, blocks);
    for (size_t s = 0; s < lengths.size(); ++s) {
      const auto sequence = static_cast<int32_t>(s);
      const int64_t kind = draw(0, 19);
      if (kind == 0) continue;  // finished
      if (kind == 1) add_rows(batch, -1, 0, draw(1, 3));
      const int64_t begin = kind < 4 ? draw(0, lengths[s] - 1) : lengths[s] - 1;
      add_rows(batch, sequence, begin, kind == 4 ? lengths[s] : begin + 1);
    }
    const AttentionHeads heads = {
        .group = draw(1, kMaxAttentionGroup), .num_kv_heads = draw(1, 40), .head_dim = draw(1, 2) * 64};
    expect_covered(batch, heads);
    num_sharing +=
        expect_covered(batch, heads, {.most_sequences = draw(2, kMaxAttentionGroup), .large_items = draw(0, 1) == 1});
    EXPECT_EQ(expect_covered(batch, heads, {.most_sequences = 1}), 0);
  }
  EXPECT_GT(num_sharing, 200);
}

TEST(AttentionWork, PutsSequencesThatShareStepsTogether) {
  // Prompts of 300 and of 255 tokens, with 6 and 3 samples; the first keys of both are in other blocks.
  const std::vector<int64_t> lengths = {301, 350, 420, 301, 310, 320, 300, 256, 700};
  Batch batch = sharing(lengths, {0, 18, 18, 18, 18, 18, 0, 15, 15});
  add_last_rows(batch, lengths);
  const std::vector<Item> all = {{6, 3, 128}, {0, 4, 256}, {4, 2, 256}};
  EXPECT_EQ(items_of(batch, {.group = 4}, 4), all);
  EXPECT_EQ(items_of(batch, {.group = 4}, 2).size(), 5U);
  EXPECT_EQ(items_of(batch, {.group = 2}, 8), (std::vector<Item>{{6, 3, 128}, {0, 6, 256}}));
  // A step of 256 keys: the prompt of 255 tokens has none.
  EXPECT_EQ(items_of(batch, {.group = 4, .head_dim = 64}, 4),
            (std::vector<Item>{{8, 1, 0}, {0, 4, 256}, {4, 2, 256}, {6, 1, 0}, {7, 1, 0}}));
  EXPECT_EQ(items_of(batch, {.group = 16}, 16).size(), 9U);
}

TEST(AttentionWork, PutsFewerTogetherWhereOneItemWouldBeTheLastToEnd) {
  const std::vector<int64_t> lengths(8, 400);
  Batch batch = sharing(lengths, {0, 16, 16, 16, 16, 16, 16, 16});
  add_last_rows(batch, lengths);
  const auto num_items = [&](int64_t num_kv_heads) {
    return items_of(batch, {.group = 4, .num_kv_heads = num_kv_heads}).size();
  };
  EXPECT_EQ(num_items(8), 8U);  // 400 keys an item, of 396 that run at once
  EXPECT_EQ(num_items(96), 4U);
  EXPECT_EQ(num_items(396), 2U);
}

TEST(AttentionWork, CutsWhereItSavesTheMostKeys) {
  // Five sequences that share a step, of which the last four share two more.
  const std::vector<int64_t> lengths = {400, 400, 400, 400, 400};
  Batch batch = sharing(lengths, {0, 8, 24, 24, 24});
  add_last_rows(batch, lengths);
  EXPECT_EQ(items_of(batch, {.group = 4}, 4), (std::vector<Item>{{1, 4, 384}, {0, 1, 0}}));
}

TEST(AttentionWork, SharesOnlyWhatEveryRowSees) {
  const std::vector<int64_t> lengths = {400, 400, 400};
  Batch batch = sharing(lengths, {0, 25, 25});
  add_rows(batch, 0, 399, 400);
  add_rows(batch, 1, 255, 256);
  add_rows(batch, 2, 254, 255);
  EXPECT_EQ(items_of(batch, {.group = 4}, 4), (std::vector<Item>{{0, 2, 256}, {2, 1, 0}}));
}

TEST(AttentionWork, OfOtherRowsLiesInTheSamePlaces) {
  Batch prompt = sequences_of({64, 1});
  add_rows(prompt, 0, 0, 64);
  Batch single = sequences_of({64, 1});
  for (int64_t p = 63; p >= 0; --p) add_rows(single, 0, p, p + 1);
  Ids words;
  const AttentionHeads heads = {.group = 4};
  const AttentionWork a = build_work(prompt.rows(), heads, words), b = build_work(single.rows(), heads, words);
  EXPECT_EQ(a.num_words, b.num_words);
  EXPECT_EQ(a.table, b.table);
  EXPECT_EQ(a.num_items, 16);
  EXPECT_EQ(b.num_items, 64);
}

TEST(AttentionWork, StartsWithTheMostKeys) {
  Batch batch = sequences_of({20, 100, 50});
  add_rows(batch, 0, 19, 20);
  add_rows(batch, 1, 0, 100);
  add_rows(batch, 2, 49, 50);
  Ids words;
  const AttentionWork work = build_work(batch.rows(), {.group = 4}, words);
  EXPECT_EQ(words[static_cast<size_t>(work.item_row)], 1);
  EXPECT_EQ(words[static_cast<size_t>(work.item_rows)], 100);
  EXPECT_EQ(words[static_cast<size_t>(work.item_tile)], 24);
}

TEST(AttentionWork, HasLargeItemsWhereARunFillsOne) {
  Batch batch = sequences_of({31, 100, 900});
  add_rows(batch, 0, 0, 31);
  add_rows(batch, -1, 0, 64);
  add_rows(batch, 1, 60, 100);
  add_rows(batch, 2, 899, 900);
  Ids words;
  const AttentionWork work = build_work(batch.rows(), {.group = 4}, words, {.large_items = true});
  // The 40 rows are two items of up to 32 rows, and come first although the last sequence has more keys.
  EXPECT_EQ(work.num_large_items, 2);
  EXPECT_EQ(words[static_cast<size_t>(work.item_row)], 95);
  EXPECT_EQ(words[static_cast<size_t>(work.item_tile)], 1);
  EXPECT_EQ(words[static_cast<size_t>(work.item_row + 2)], 135);
  EXPECT_EQ(build_work(batch.rows(), {.group = 5}, words, {.large_items = true}).num_large_items, 4);
  EXPECT_EQ(build_work(batch.rows(), {.group = 4}, words).num_large_items, 0);
}

TEST(AttentionWork, OfADecodeStepIsSmall) { EXPECT_LT(AttentionWork(256, 256, 80).num_words * 4, 150 * 1024); }

TEST(AttentionWork, RefusesRowsThatAreNotThere) {
  Ids words;
  Batch past = sequences_of({16});
  add_rows(past, 0, 32, 33);
  EXPECT_THROW(build_work(past.rows(), {}, words), BugError);
  Batch unknown = sequences_of({16});
  add_rows(unknown, 1, 0, 1);
  EXPECT_THROW(build_work(unknown.rows(), {}, words), BugError);
}

TEST(ExpandedRows, GiveEachTokenTheRowsThatAliasIt) {
  // A prompt of 17 tokens in rows 0..16: sequence 0 has it and row 17, sequence 2 its full block, its tail in a block
  // of its own, and rows 18 and 19. Sequence 1 has no row.
  Batch batch{.table = {5, 6, 5, 7, 5, 8}, .num_sequences = 3, .max_blocks = 2};
  add_rows(batch, 0, 0, 18);
  add_rows(batch, 2, 17, 19);
  Ids tokens, slots;
  for (int32_t p = 0; p < 18; ++p) {
    tokens.push_back(p);
    slots.push_back(p < 16 ? 5 * 16 + p : 6 * 16 + p - 16);
  }
  for (const auto& [token, slot] : {std::pair{16, 7 * 16}, {16, 8 * 16}, {18, 8 * 16 + 1}, {19, 8 * 16 + 2}, {3, -1}}) {
    tokens.push_back(token);
    slots.push_back(slot);
  }
  const ExpandedRows expanded =
      expand_rows(batch.rows(), tokens.data(), slots.data(), static_cast<int64_t>(tokens.size()));
  EXPECT_EQ(expanded.cu_q, (Ids{0, 18, 20}));
  EXPECT_EQ(expanded.cu_k, (Ids{0, 18, 37}));
  EXPECT_EQ(expanded.max_q, 18);
  EXPECT_EQ(expanded.max_k, 19);
  ASSERT_EQ(expanded.slots.size(), 37U);
  EXPECT_EQ(expanded.slots[17], 6 * 16 + 1);
  EXPECT_EQ(expanded.slots[18], 5 * 16);
  EXPECT_EQ(expanded.slots[36], 8 * 16 + 2);
  const auto rows_of = [&](size_t token) {
    const auto begin = expanded.expanded_rows_of_token.begin();
    return Ids(begin + expanded.token_offsets[token], begin + expanded.token_offsets[token + 1]);
  };
  EXPECT_EQ(rows_of(0), (Ids{0, 18}));
  EXPECT_EQ(rows_of(15), (Ids{15, 33}));
  EXPECT_EQ(rows_of(16), (Ids{16, 34}));
  EXPECT_EQ(rows_of(17), (Ids{17}));
  EXPECT_EQ(rows_of(18), (Ids{35}));
  EXPECT_EQ(rows_of(19), (Ids{36}));
}

TEST(ExpandedRows, RefuseASlotOfTwoTokens) {
  Batch batch = sequences_of({2});
  add_rows(batch, 0, 0, 2);
  const Ids tokens = {0, 1}, slots = {1600, 1600};
  EXPECT_THROW(expand_rows(batch.rows(), tokens.data(), slots.data(), 2), BugError);
}

}  // namespace
}  // namespace tandem::device::cuda
