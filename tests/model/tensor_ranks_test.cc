// Several ranks, which are threads here, add up their parts and gather their columns.
#include "model/tensor_ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "tests/device/draw.h"
#include "tests/device/ranks/thread_ranks.h"
#include "tests/model/test_model.h"

namespace tandem::model {
namespace {

using at::Tensor;
using device::same_bits;

constexpr uint64_t kSeed = 5;

std::vector<Tensor> draw_parts(device::TestDraw& draw, int size, at::IntArrayRef shape) {
  std::vector<Tensor> parts;
  for (int rank = 0; rank < size; ++rank) parts.push_back(draw.normal(shape, at::kFloat, 0.0, 1.0 + 100.0 * rank));
  return parts;
}

// Parts are sent whole to all ranks, or by rows to their owners, as their size says: the result is the same.
TEST(TensorRanks, EveryRankHasTheSumInTheOrderOfTheRanksHoweverItIsSent) {
  device::TestDraw draw(kSeed);
  for (const int size : {2, 3, 4}) {
    for (const int64_t num_rows : {1, 4, 7}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const std::vector<Tensor> parts = draw_parts(draw, size, {num_rows, 24});
        const Tensor residual = draw.normal({num_rows, 24}, dtype);
        Tensor total = parts[0];
        for (size_t i = 1; i < parts.size(); ++i) total = total + parts[i];
        const Tensor rounded = total.to(dtype), added = residual + rounded;
        for (const int64_t gathered_part_bytes : {int64_t{0}, std::numeric_limits<int64_t>::max()}) {
          const auto sums = device::on_thread_ranks(size, [&](device::Communicator& ends) {
            const TensorRanks ranks(test_ops(1), ends, gathered_part_bytes);
            const Tensor& own = parts[static_cast<size_t>(ends.rank())];
            return std::pair(ranks.sum(own, {}, dtype), ranks.sum(own, residual, dtype));
          });
          for (const auto& [plain, with_residual] : sums) {
            EXPECT_TRUE(same_bits(plain, rounded)) << size << " ranks, " << num_rows << " rows; seed " << kSeed;
            EXPECT_TRUE(same_bits(with_residual, added)) << size << " ranks, " << num_rows << " rows; seed " << kSeed;
          }
        }
      }
    }
  }
}

// The ranks do not divide the rows, or outnumber them.
TEST(TensorRanks, OwnRowsAreThoseOfTheSumAndGatheredAreAllOfIt) {
  device::TestDraw draw(kSeed);
  for (const int size : {2, 3, 4}) {
    for (const int64_t num_rows : {1, 2, 7}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const std::vector<Tensor> parts = draw_parts(draw, size, {num_rows, 24});
        const Tensor residual = draw.normal({num_rows, 24}, dtype);
        const auto results = device::on_thread_ranks(size, [&](device::Communicator& ends) {
          const TensorRanks ranks(test_ops(1), ends);
          const Tensor& part = parts[static_cast<size_t>(ends.rank())];
          const Tensor whole = ranks.sum(part, residual, dtype);
          const Tensor own = ranks.sum_own_rows(part, ranks.own_rows(residual), dtype);
          EXPECT_TRUE(same_bits(own, ranks.own_rows(whole).clone())) << num_rows << " rows; seed " << kSeed;
          EXPECT_TRUE(
              same_bits(ranks.sum_own_rows(part, {}, dtype), ranks.own_rows(ranks.sum(part, {}, dtype)).clone()))
              << num_rows << " rows; seed " << kSeed;
          return std::tuple(whole, ranks.gather_rows(own, num_rows), own.size(0));
        });
        int64_t total = 0;
        for (const auto& [whole, gathered, own_rows] : results) {
          EXPECT_TRUE(same_bits(gathered, whole)) << size << " ranks, " << num_rows << " rows; seed " << kSeed;
          total += own_rows;
        }
        EXPECT_EQ(total, num_rows) << "each row is one rank's";
      }
    }
  }
}

TEST(TensorRanks, OwnRowsAreWholeWhereEachRankHasColumns) {
  device::TestDraw draw(kSeed);
  const std::vector<int64_t> widths = {5, 1, 8};
  for (const int64_t num_rows : {1, 2, 4}) {
    std::vector<Tensor> parts;
    for (const int64_t width : widths) parts.push_back(draw.normal({num_rows, width}, at::kFloat));
    const auto rows = device::on_thread_ranks(3, [&](device::Communicator& ends) {
      return TensorRanks(test_ops(1), ends).whole_own_rows(parts[static_cast<size_t>(ends.rank())], widths);
    });
    EXPECT_TRUE(same_bits(at::cat(rows, 0), at::cat(parts, 1))) << num_rows << " rows; seed " << kSeed;
  }
}

// Several tensors are completed at once, also where some ranks have no rows.
TEST(TensorRanks, RowsThatEachRankHasAreCompletedOnAll) {
  device::TestDraw draw(kSeed);
  for (const int64_t num_rows : {2, 7}) {
    const Tensor column = draw.normal({num_rows}, at::kFloat), table = draw.normal({num_rows, 3}, at::kFloat);
    const auto results = device::on_thread_ranks(3, [&](device::Communicator& ends) {
      const TensorRanks ranks(test_ops(1), ends);
      const std::vector<Tensor> wholes = {at::zeros_like(column), at::zeros_like(table)};
      ranks.own_rows(wholes[0]).copy_(ranks.own_rows(column));
      ranks.own_rows(wholes[1]).copy_(ranks.own_rows(table));
      ranks.complete_rows(wholes);
      return wholes;
    });
    for (const std::vector<Tensor>& wholes : results) {
      EXPECT_TRUE(same_bits(wholes[0], column) && same_bits(wholes[1], table)) << num_rows << " rows; seed " << kSeed;
    }
  }
}

// Words are bits: those of -0 and of a NaN stay as they are.
TEST(TensorRanks, WordsAreFilledInByWhoeverHasThem) {
  const std::vector<int32_t> words = {7, -1, static_cast<int32_t>(0x80000000), 0x7fc00001, 0, 3};
  const auto results = device::on_thread_ranks(3, [&](device::Communicator& ends) {
    const Tensor mine = at::zeros({std::ssize(words)}, at::kInt);
    for (size_t i = 0; i < words.size(); ++i) {
      if (static_cast<int>(i % 3) == ends.rank()) mine.mutable_data_ptr<int32_t>()[i] = words[i];
    }
    TensorRanks(test_ops(1), ends).fill_in(mine);
    return std::vector<int32_t>(mine.const_data_ptr<int32_t>(), mine.const_data_ptr<int32_t>() + mine.numel());
  });
  for (const std::vector<int32_t>& all : results) EXPECT_EQ(all, words);
}

}  // namespace
}  // namespace tandem::model
