// The gradient of attention, cut into calls of cuDNN: together they have each query and key that belong together once,
// and take no more memory than is planned.
#include "device/cuda/attention/attention_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>

namespace tandem::device::cuda {
namespace {

constexpr uint64_t kPartsSeed = 20261127;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr AttentionHeads kQwen4B = {.group = 4, .num_kv_heads = 8, .head_dim = 128};

// (rows, keys) of each segment.
using Segments = std::vector<std::pair<int64_t, int64_t>>;

ExpandedRows rows_of(const Segments& segments) {
  ExpandedRows rows;
  rows.cu_q = rows.cu_k = {0};
  for (const auto& [num_rows, num_keys] : segments) {
    rows.cu_q.push_back(static_cast<int32_t>(rows.cu_q.back() + num_rows));
    rows.cu_k.push_back(static_cast<int32_t>(rows.cu_k.back() + num_keys));
    rows.max_q = std::max(rows.max_q, num_rows);
    rows.max_k = std::max(rows.max_k, num_keys);
  }
  return rows;
}

// Expects that every segment is cut into a causal part and, where it has a prefix, one in full; and that calls keep
// their bounds. Returns the largest workspace.
int64_t expect_cut(const Segments& segments, const AttentionHeads& heads) {
  const ExpandedRows rows = rows_of(segments);
  std::map<int64_t, int> causal, full;  // parts by their first row
  int64_t most = 0;
  for (const PartsCall& call : cut_into_parts(rows, heads)) {
    const PartsShape& shape = call.shape;
    EXPECT_EQ(static_cast<int64_t>(call.parts.size()), shape.parts);
    EXPECT_EQ(heads.num_kv_heads % shape.kv_heads, 0);
    const int64_t bytes = workspace_bytes(shape);
    most = std::max(most, bytes);
    EXPECT_TRUE(bytes <= most_call_bytes(heads, rows.cu_q.back()) || (shape.parts == 1 && shape.kv_heads == 1))
        << bytes;
    EXPECT_LE(bytes, kMostWorkspaceBytes);
    const bool is_causal = shape.form == PartForm::kCausal;
    for (const AttentionPart& part : call.parts) {
      EXPECT_LE(part.rows, shape.rows);
      EXPECT_LE(part.keys, shape.keys);
      const auto segment =
          static_cast<size_t>(std::find(rows.cu_q.begin(), rows.cu_q.end(), part.row) - rows.cu_q.begin());
      const auto [num_rows, num_keys] = segments.at(segment);
      const int64_t prefix = num_keys - num_rows;
      EXPECT_EQ(part.rows, num_rows);
      EXPECT_EQ(part.keys, is_causal ? num_rows : prefix);
      EXPECT_EQ(part.key, rows.cu_k[segment] + (is_causal ? prefix : 0));
      ++(is_causal ? causal : full)[part.row];
    }
  }
  for (size_t s = 0; s < segments.size(); ++s) {
    EXPECT_EQ(causal[rows.cu_q[s]], 1);
    EXPECT_EQ(full[rows.cu_q[s]], segments[s].second > segments[s].first ? 1 : 0);
  }
  return most;
}

// cuDNN 9.19 asked for so many bytes on an H100 and, for seven parts, on an H200.
TEST(AttentionParts, TakeTheWorkspaceThatWasMeasured) {
  struct Case {
    PartForm form;
    int64_t parts, rows, keys, kv_heads, group, head_dim, bytes;
  };
  for (const Case& c : {Case{PartForm::kCausal, 1, 8448, 8448, 1, 4, 128, 588387072},
                        {PartForm::kCausal, 16, 1280, 1280, 8, 4, 128, 2015892224},
                        {PartForm::kCausal, 8, 128, 128, 8, 4, 128, 25299712},
                        {PartForm::kCausal, 1, 8448, 8448, 1, 4, 64, 579736320},
                        {PartForm::kCausal, 1, 8448, 8448, 4, 1, 128, 571085824},
                        {PartForm::kCausal, 7, 1024, 1024, 2, 1, 128, 29420800},
                        {PartForm::kFull, 1, 8192, 256, 8, 4, 128, 139461376},
                        {PartForm::kFull, 16, 1024, 256, 8, 4, 128, 337646336}}) {
    const PartsShape shape = {.form = c.form,
                              .parts = c.parts,
                              .rows = c.rows,
                              .keys = c.keys,
                              .kv_heads = c.kv_heads,
                              .heads = {.group = c.group, .num_kv_heads = 8, .head_dim = c.head_dim}};
    EXPECT_GE(int64_t{workspace_bytes(shape)}, c.bytes);
    EXPECT_LE(int64_t{workspace_bytes(shape)}, c.bytes + 4096);
  }
}

TEST(AttentionParts, HaveTheShapesThatTheirBoundsNameAsExamples) {
  // Two groups of eight samples, 1,280 tokens each; the first of a group has the prompt's rows.
  Segments short_ones;
  for (int i = 0; i < 16; ++i) short_ones.emplace_back(i % 8 == 0 ? 1279 : 1023, 1279);
  std::vector<PartsCall> calls = cut_into_parts(rows_of(short_ones), kQwen4B);
  EXPECT_EQ(calls.at(0).shape.parts, 16);
  EXPECT_EQ(calls.at(0).shape.rows, 1280);
  EXPECT_EQ(calls.at(0).shape.kv_heads, 8);
  EXPECT_EQ(calls.at(1).shape.form, PartForm::kFull);
  EXPECT_EQ(calls.at(1).shape.keys, 256);
  calls = cut_into_parts(rows_of({{8700, 8700}}), kQwen4B);
  EXPECT_EQ(calls.at(0).shape.kv_heads, 4);
  calls = cut_into_parts(rows_of({{17408, 17408}}), kQwen4B);
  EXPECT_EQ(calls.at(0).shape.kv_heads, 1);
  EXPECT_LE(int64_t{workspace_bytes(calls.at(0).shape)}, kMostCallBytes);
  calls = cut_into_parts(rows_of({{32768, 32768}}), kQwen4B);
  EXPECT_EQ(int64_t{workspace_bytes(calls.at(0).shape)} / kMiB, 8256);
}

// cuDNN compiles a kernel for each number of rows and keys.
TEST(AttentionParts, CompletionsOfAllLengthsShareFewKernels) {
  std::set<int64_t> steps;
  for (int64_t rows = kFewestKeys; rows <= 8192; ++rows) {
    const PartsCall call = cut_into_parts(rows_of({{rows, rows}}), kQwen4B).at(0);
    EXPECT_GE(call.shape.rows, rows);
    EXPECT_LT(call.shape.rows, rows + std::max<int64_t>(256, rows / 4)) << "room that is not filled takes workspace";
    steps.insert(call.shape.rows);
  }
  EXPECT_EQ(steps.size(), 15U);
}

TEST(AttentionParts, AreNoneWhereCudnnMayNotCompute) {
  EXPECT_TRUE(cut_into_parts(rows_of({{511, 511}, {100, 200}}), kQwen4B).empty());
  EXPECT_TRUE(cut_into_parts(rows_of({{600, 600}}), {.group = 4, .num_kv_heads = 8, .head_dim = 84}).empty());
  EXPECT_TRUE(cut_into_parts(rows_of({{40000, 40000}}), kQwen4B).empty()) << "the workspace of one KV head";
  EXPECT_TRUE(cut_into_parts(rows_of({{600, 600}, {16, 0}}), kQwen4B).empty()) << "rows that fill up a batch";
  EXPECT_TRUE(cut_into_parts(rows_of(Segments(1100, {600, 600})), kQwen4B).empty()) << "places past 32 bits";
  EXPECT_FALSE(cut_into_parts(rows_of({{512, 512}, {1, 1}}), kQwen4B).empty());
}

TEST(AttentionParts, CoverEverySegmentWithinTheMemoryThatIsPlanned) {
  std::mt19937_64 random(kPartsSeed);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 400; ++round) {
    const AttentionHeads heads = {.group = draw(1, 8), .num_kv_heads = draw(1, 12), .head_dim = 8 * draw(1, 32)};
    const int64_t longest = draw(0, 3) == 0 ? draw(600, 20000) : draw(512, 3000);
    Segments segments;
    for (int64_t i = draw(0, 20); i >= 0; --i) {
      const int64_t keys = i == 0 ? longest : draw(1, longest);
      segments.emplace_back(draw(0, 1) == 0 ? keys : draw(1, keys), keys);
    }
    if (!has_parts(heads, longest)) continue;
    const int64_t most = expect_cut(segments, heads);
    EXPECT_LE(most, int64_t{most_workspace_bytes(heads, rows_of(segments).cu_q.back(), std::ssize(segments), longest)})
        << "round " << round << " of seed " << kPartsSeed;
  }
  // The bound is near what is taken where all samples are as long as the longest, for which the plan is made.
  for (const int64_t longest : {1279, 8447, 16639, 32511}) {
    const Segments segments(longest < 2000 ? 16 : 2, {longest, longest});
    const int64_t most = expect_cut(segments, kQwen4B);
    EXPECT_LE(int64_t{most_workspace_bytes(kQwen4B, rows_of(segments).cu_q.back(), std::ssize(segments), longest)},
              most + most / 40)
        << longest;
  }
}

}  // namespace
}  // namespace tandem::device::cuda
