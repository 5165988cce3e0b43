#include "device/cuda/attention/attention_grad_work.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace tandem::device::cuda {
namespace {

constexpr int64_t kAscendingItems = 132;  // as many as an H200 computes at once

int32_t ceil_divide(int32_t n, int64_t by) { return (n + static_cast<int32_t>(by) - 1) / static_cast<int32_t>(by); }

}  // namespace

GradScratch::GradScratch(const AttentionHeads& heads, base::Size num_tiles) {
  constexpr int64_t kAligned = 128;
  const base::Size places = num_tiles * heads.group * heads.num_kv_heads;
  dq = 0;
  row_terms = dq + places * kGradRows * head_width(heads.head_dim) * base::kFloatBytes;
  num_added = row_terms + places * 2 * kGradRows * base::kFloatBytes;
  next_item = num_added + (places * grad_parts(heads.head_dim) * 4 + kAligned - 1) / kAligned * kAligned;
  bytes = next_item + kAligned;
}

GradWork build_grad_work(const ExpandedRows& rows, const AttentionHeads& heads) {
  GradWork work;
  for (size_t s = 0; s + 1 < rows.cu_q.size(); ++s) {
    const GradSegment segment = {.row = rows.cu_q[s],
                                 .rows = rows.cu_q[s + 1] - rows.cu_q[s],
                                 .key = rows.cu_k[s],
                                 .keys = rows.cu_k[s + 1] - rows.cu_k[s],
                                 .tile = static_cast<int32_t>(work.tiles.size())};
    for (int32_t row = 0; row < segment.rows; row += kGradRows) {
      work.tiles.push_back(
          {.row = segment.row + row, .rows = std::min<int32_t>(kGradRows, segment.rows - row), .keys = segment.keys});
    }
    work.segments.push_back(segment);
  }

  std::vector<int32_t> longest_first(work.segments.size());
  std::iota(longest_first.begin(), longest_first.end(), 0);
  std::ranges::stable_sort(longest_first, std::greater(),
                           [&](int32_t s) { return work.segments[static_cast<size_t>(s)].keys; });
  struct Unit {
    int32_t segment, kv_head, blocks;
  };
  std::vector<Unit> units;
  for (const int32_t s : longest_first) {
    const int32_t blocks = ceil_divide(work.segments[static_cast<size_t>(s)].keys, grad_keys(heads.head_dim));
    for (int32_t kv_head = 0; blocks > 0 && kv_head < heads.num_kv_heads; ++kv_head)
      units.push_back({s, kv_head, blocks});
  }
  int64_t num_ascending = 0;
  auto first_ascending = units.end();
  while (first_ascending != units.begin() && num_ascending < kAscendingItems)
    num_ascending += (--first_ascending)->blocks;

  for (auto unit = units.begin(); unit != first_ascending; ++unit) {
    for (int32_t block = unit->blocks - 1; block >= 0; --block) {
      work.items.push_back({unit->segment, unit->kv_head, block, GradOrder::kDescending});
    }
  }
  // The ascending ones side by side: the items with the most blocks after them, which are the longest, come first.
  int32_t most_blocks = 0;
  for (auto unit = first_ascending; unit != units.end(); ++unit) most_blocks = std::max(most_blocks, unit->blocks);
  for (int32_t left = most_blocks; left > 0; --left) {
    for (auto unit = first_ascending; unit != units.end(); ++unit) {
      if (left > unit->blocks) continue;
      work.items.push_back({unit->segment, unit->kv_head, unit->blocks - left, GradOrder::kAscending});
    }
  }
  return work;
}

}  // namespace tandem::device::cuda
