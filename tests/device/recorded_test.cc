// Recorded work reads the rows that Ops::refill() puts in the place of those that it was recorded with.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "device/block.h"
#include "device/registry.h"
#include "tests/device/draw.h"

namespace tandem::device {
namespace {

constexpr int64_t kRows = 32, kBlocks = 4, kPositions = kBlocks * kBlockTokens;

// Returns rows [0, n) of one sequence from `first` on, or one row of each of n sequences that all have the same blocks;
// the rest of kRows rows fill up.
AttentionRows rows_of(int64_t n, int64_t first, bool one_sequence) {
  AttentionRows rows;
  rows.sequence_of_row = at::full({kRows}, -1, at::TensorOptions(at::kInt));
  rows.row_position = at::zeros({kRows}, at::TensorOptions(at::kInt));
  for (int64_t i = 0; i < n; ++i) {
    rows.sequence_of_row.mutable_data_ptr<int32_t>()[i] = one_sequence ? 0 : static_cast<int32_t>(i);
    rows.row_position.mutable_data_ptr<int32_t>()[i] = static_cast<int32_t>(first + (one_sequence ? i : 0));
  }
  rows.block_table = at::arange(kBlocks, at::TensorOptions(at::kInt)).repeat({kRows, 1});
  return rows;
}

class RecordedTest : public testing::TestWithParam<std::string> {};

std::vector<std::string> backends() {
  std::vector<std::string> names = device_backends();
  names.emplace_back("cpu");
  return names;
}
INSTANTIATE_TEST_SUITE_P(Backends, RecordedTest, testing::ValuesIn(backends()),
                         [](const auto& info) { return info.param; });

// A run of 16 rows with 8 query heads of a KV head fills an item of the kernel for many rows, which recorded work
// lacks.
TEST_P(RecordedTest, AttentionReadsTheRowsThatAreThereNow) {
  if (make_backend(GetParam() == "cpu" ? "auto" : GetParam(), 1) == nullptr) GTEST_SKIP() << why_missing(GetParam());
  const std::unique_ptr<Ops> ops = make_ops(parse_device(GetParam()), {});
  TestDraw draw(5);
  for (const int64_t group : {1, 2, 8, 16}) {
    for (const auto& [head_dim, window] : {std::pair<int64_t, int64_t>{64, 0}, {128, 0}, {64, 7}, {128, 20}}) {
      if (!ops->can_record(at::kBFloat16, group, 1, head_dim) && GetParam() != "cpu") continue;
      SCOPED_TRACE(testing::Message() << group << " heads of " << head_dim << ", window " << window);
      const auto drawn = [&](int64_t rows, int64_t heads) {
        return draw.normal({rows, heads, head_dim}, at::kBFloat16).to(ops->device());
      };
      const Tensor q = drawn(kRows, group),
                   places = at::arange(kPositions, at::TensorOptions(at::kInt)).to(ops->device());
      const Tensor cache = at::zeros({kBlocks, 2, 1, head_dim * kBlockTokens}, q.options());
      ops->kv_append(cache, drawn(kPositions, 1), drawn(kPositions, 1), places, places);

      AttentionRows first = rows_of(kRows, 40, /*one_sequence=*/false);
      first.memory = at::empty({ops->prepared_bytes(kRows, kRows, kBlocks)}, q.options().dtype(at::kByte));
      AttentionRows prepared = ops->prepare(first);
      prepared.window = window;
      Tensor out = at::zeros_like(q);
      const auto work = [&] { out.copy_(ops->paged_attention(q, cache, prepared, Tensor())); };
      work();  // it also loads what a recording must find ready
      const auto recording = ops->record(work);
      struct Case {
        int64_t rows, first;
        bool one_sequence;
      };
      for (const Case c : {Case{32, 20, true}, {16, 30, true}, {17, 0, true}, {5, 33, false}, {31, 11, true}}) {
        AttentionRows rows = rows_of(c.rows, c.first, c.one_sequence);
        rows.window = window;
        ops->refill(prepared, rows);
        out.fill_(7);
        recording->replay();
        const Tensor expected = ops->paged_attention(q, cache, rows, Tensor());
        EXPECT_TRUE(out.narrow(0, 0, c.rows).equal(expected.narrow(0, 0, c.rows)))
            << c.rows << " rows from position " << c.first;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::device
