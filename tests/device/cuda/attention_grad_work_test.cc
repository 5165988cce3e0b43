// Checks which block computes what of the gradient of attention: every tile meets the blocks whose keys its rows see,
// in an order that nobody has to wait for in vain.
#include "device/cuda/attention/attention_grad_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "device/cuda/attention/attention.h"

namespace tandem::device::cuda {
namespace {

constexpr uint64_t kGradSeed = 20261130;

// (rows, keys) of each segment.
using Lengths = std::vector<std::pair<int32_t, int32_t>>;

ExpandedRows expanded(const Lengths& lengths) {
  ExpandedRows rows;
  rows.cu_q = rows.cu_k = {0};
  for (const auto& [num_rows, num_keys] : lengths) {
    rows.cu_q.push_back(rows.cu_q.back() + num_rows);
    rows.cu_k.push_back(rows.cu_k.back() + num_keys);
  }
  return rows;
}

Lengths draw_lengths(std::mt19937_64& random) {
  Lengths lengths(1 + random() % 6);
  for (auto& [rows, keys] : lengths) {
    rows = static_cast<int32_t>(1 + random() % 700);
    keys = rows + static_cast<int32_t>(random() % 3 == 0 ? random() % 600 : 0);
    if (random() % 8 == 0) keys = 0;  // rows that fill up a batch
  }
  return lengths;
}

// Whether a row of the tile sees a key of the block, asked of each row and key.
bool sees(const GradView& view, int32_t tile, int32_t block) {
  for (int32_t row = tile * kGradRows; row < std::min<int32_t>(view.rows, (tile + 1) * kGradRows); ++row) {
    for (int32_t key = block * view.block_keys; key < std::min(view.keys, (block + 1) * view.block_keys); ++key) {
      const int32_t own = view.keys - view.rows + row;
      if (key <= own && key > own - view.window) return true;
    }
  }
  return false;
}

TEST(AttentionGradWork, ATileIsWalkedByTheBlocksThatItSees) {
  std::mt19937_64 random(kGradSeed);
  SCOPED_TRACE(testing::Message() << "seed " << kGradSeed);
  for (int draw = 0; draw < 60; ++draw) {
    const auto rows = static_cast<int32_t>(1 + random() % 500);
    const auto keys = rows + static_cast<int32_t>(random() % 2 * (random() % 700));
    const int32_t window = random() % 2 == 0 ? kAllKeys : static_cast<int32_t>(1 + random() % 300);
    const int32_t block_keys = random() % 2 == 0 ? 64 : 128;
    const GradView view = {rows, keys, window, block_keys};
    SCOPED_TRACE(testing::Message() << rows << " rows, " << keys << " keys, window " << window << ", blocks of "
                                    << block_keys);
    const auto num_tiles = static_cast<int32_t>((rows + kGradRows - 1) / kGradRows),
               num_blocks = static_cast<int32_t>((keys + block_keys - 1) / block_keys);
    for (int32_t tile = 0; tile < num_tiles; ++tile) {
      for (int32_t block = 0; block < num_blocks; ++block) {
        const bool is_seen = sees(view, tile, block);
        EXPECT_EQ(view.first_tile(block) <= tile && tile < view.end_tile(block), is_seen)
            << "tile " << tile << ", block " << block;
        EXPECT_EQ(view.first_block(tile) <= block && block <= view.last_block(tile), is_seen)
            << "tile " << tile << ", block " << block;
      }
    }
  }
}

// A GPU takes items in their order. Were one to wait for a later one, all blocks of threads might wait.
TEST(AttentionGradWork, BlocksAddToATileInTheOrderOfTheItems) {
  std::mt19937_64 random(kGradSeed + 1);
  SCOPED_TRACE(testing::Message() << "seed " << kGradSeed + 1);
  int64_t num_ascending = 0, num_descending = 0;
  for (int draw = 0; draw < 40; ++draw) {
    const auto kv_heads = static_cast<int32_t>(1 + random() % 8);
    const int32_t window = random() % 2 == 0 ? kAllKeys : static_cast<int32_t>(1 + random() % 300);
    const AttentionHeads heads = {.group = 1, .num_kv_heads = kv_heads, .head_dim = random() % 2 == 0 ? 256 : 80};
    const auto block_keys = static_cast<int32_t>(grad_keys(heads.head_dim));
    const GradWork work = build_grad_work(expanded(draw_lengths(random)), heads);
    std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> added;  // blocks, by segment, KV head and tile
    std::set<std::tuple<int32_t, int32_t, int32_t>> items;
    for (const GradItem& item : work.items) {
      ++(item.order == GradOrder::kAscending ? num_ascending : num_descending);
      EXPECT_TRUE(items.emplace(item.segment, item.kv_head, item.block).second) << "an item is listed twice";
      const GradSegment& segment = work.segments.at(static_cast<size_t>(item.segment));
      const GradView view = {segment.rows, segment.keys, window, block_keys};
      for (int32_t tile = view.first_tile(item.block); tile < view.end_tile(item.block); ++tile) {
        EXPECT_EQ(view.num_before(item.block, tile, item.order), (added[{item.segment, item.kv_head, tile}]++));
      }
    }
    size_t num_items = 0;
    for (const GradSegment& segment : work.segments) {
      num_items += static_cast<size_t>((segment.keys + block_keys - 1) / block_keys * kv_heads);
    }
    EXPECT_EQ(items.size(), num_items);
    // Each tile of each KV head is written by somebody.
    for (size_t s = 0; s < work.segments.size(); ++s) {
      const GradSegment& segment = work.segments[s];
      for (int32_t tile = 0; segment.keys > 0 && tile * kGradRows < segment.rows; ++tile) {
        for (int32_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
          EXPECT_GT((added[{static_cast<int32_t>(s), kv_head, tile}]), 0);
        }
      }
    }
  }
  EXPECT_GT(num_ascending, 100);
  EXPECT_GT(num_descending, 100);
}

TEST(AttentionGradWork, TilesHoldEachRowOnceAndNoMoreThanIsPlanned) {
  std::mt19937_64 random(kGradSeed + 2);
  SCOPED_TRACE(testing::Message() << "seed " << kGradSeed + 2);
  for (int draw = 0; draw < 40; ++draw) {
    const Lengths lengths = draw_lengths(random);
    const GradWork work = build_grad_work(expanded(lengths), {.group = 1, .num_kv_heads = 2, .head_dim = 128});
    int32_t row = 0, key = 0, tile = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      const auto& [rows, keys] = lengths[s];
      const GradSegment& segment = work.segments.at(s);
      EXPECT_EQ(segment.row, row);
      EXPECT_EQ(segment.rows, rows);
      EXPECT_EQ(segment.key, key);
      EXPECT_EQ(segment.keys, keys);
      EXPECT_EQ(segment.tile, tile);
      for (int32_t first = 0; first < rows; first += kGradRows, ++tile) {
        const GradTile& one = work.tiles.at(static_cast<size_t>(tile));
        EXPECT_EQ(one.row, row + first);
        EXPECT_EQ(one.rows, std::min<int32_t>(kGradRows, rows - first));
        EXPECT_EQ(one.keys, keys);
      }
      row += rows;
      key += keys;
    }
    EXPECT_EQ(std::ssize(work.tiles), tile);
    EXPECT_LE(tile, row / kGradRows + std::ssize(lengths)) << "footprint.cc plans for so many";
    EXPECT_LE(std::ssize(work.items), (key / grad_keys(128) + std::ssize(lengths)) * 2);
  }
}

// A long unit that came last would leave most of a GPU idle.
TEST(AttentionGradWork, BeginsWithTheLongestSegmentAndEndsWithShortItems) {
  const GradWork work = build_grad_work(expanded({{300, 300}, {16640, 16640}, {1000, 1000}}),
                                        {.group = 4, .num_kv_heads = 8, .head_dim = 128});
  EXPECT_EQ(work.items.front().segment, 1);
  const auto tiles_of = [&](const GradItem& item) {
    const GradSegment& segment = work.segments.at(static_cast<size_t>(item.segment));
    const GradView view = {segment.rows, segment.keys, kAllKeys, 128};
    return view.end_tile(item.block) - view.first_tile(item.block);
  };
  const auto [fewest, most] = std::ranges::minmax(work.items, {}, tiles_of);
  EXPECT_GE(tiles_of(most), 260);
  for (auto item = work.items.end() - 24; item != work.items.end(); ++item) EXPECT_LE(tiles_of(*item), 3);
  EXPECT_GE(tiles_of(fewest), 1);
}

TEST(AttentionGradWork, TheScratchHasRoomForEachOfItsParts) {
  for (const AttentionHeads& heads : {AttentionHeads{4, 8, 128}, {1, 1, 24}, {3, 2, 80}, {2, 1, 256}}) {
    for (const int64_t tiles : {0, 1, 7, 264}) {
      const GradScratch scratch(heads, tiles);
      const int64_t places = tiles * heads.group * heads.num_kv_heads;
      for (const int64_t part : {scratch.dq, scratch.row_terms, scratch.num_added, scratch.next_item, scratch.bytes}) {
        EXPECT_EQ(part % 128, 0);
      }
      EXPECT_GE(scratch.row_terms - scratch.dq, places * kGradRows * head_width(heads.head_dim) * 4);
      EXPECT_GE(scratch.num_added - scratch.row_terms, places * kGradRows * 2 * 4);
      EXPECT_GE(scratch.next_item - scratch.num_added, places * grad_parts(heads.head_dim) * 4);
      EXPECT_GE(scratch.bytes - scratch.next_item, 4);
    }
  }
}

}  // namespace
}  // namespace tandem::device::cuda
