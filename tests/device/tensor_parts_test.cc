// Tests of the operations of a model that is spread over tensor ranks, on every backend: parts of tables, and sums of
// parts.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/device/draw.h"

namespace tandem::device {
namespace {

using reference::Ids;

constexpr uint64_t kPartsSeed = 19;

class TensorPartsTest : public testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override {
    if (ops_ == nullptr) GTEST_SKIP() << why_missing(GetParam().name);
  }
  at::ScalarType dtype() const { return GetParam().dtype; }

  TestDraw draw_{kPartsSeed};
  std::unique_ptr<Ops> ops_ = make_backend(GetParam().name, 1);
};

INSTANTIATE_TEST_SUITE_P(Backends, TensorPartsTest, testing::ValuesIn(in_both_dtypes(and_modules({"auto", "aten"}))),
                         [](const auto& info) {
                           return info.param.name + (info.param.dtype == at::kFloat ? "_float32" : "_bfloat16");
                         });

// Returns numbers whose sums are mostly rounding, so that another order changes the result.
Tensor rough(TestDraw& draw, at::IntArrayRef shape, at::ScalarType dtype) {
  const Tensor x = draw.normal(shape, at::kFloat);
  float* data = x.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) data[i] *= std::ldexp(1.0F, static_cast<int>(draw.integer(-12, 12)));
  return x.to(dtype);
}

Tensor sum_in_order(const std::vector<Tensor>& parts, const Tensor& residual, at::ScalarType dtype) {
  const Tensor sum = at::empty(parts[0].sizes(), dtype);
  for (int64_t i = 0; i < sum.numel(); ++i) {
    float total = 0.0F;
    for (size_t p = 0; p < parts.size(); ++p) {
      const float x = parts[p].flatten()[i].item<float>();
      total = p == 0 ? x : total + x;
    }
    if (dtype == at::kBFloat16) total = static_cast<float>(at::BFloat16(total));
    sum.flatten()[i] = residual.defined() ? residual.flatten()[i].item<float>() + total : total;
  }
  return sum;
}

TEST_P(TensorPartsTest, SumsGoFromTheFirstPartToTheLastAndAreRoundedOnce) {
  int different = 0;
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 40}, {5, 7}, {1, 8}}) {
    for (const int count : {2, 3, 8, 9}) {
      for (const at::ScalarType of_parts : {at::kFloat, dtype()}) {
        for (const bool has_residual : {false, true}) {
          std::vector<Tensor> parts;
          for (int i = 0; i < count; ++i) parts.push_back(rough(draw_, shape, of_parts));
          parts[1] = parts[0].neg();  // the rest of the sum is exact, unless it is added first
          const Tensor residual = has_residual ? rough(draw_, shape, dtype()) : Tensor();
          const Tensor sum = at::full(shape, std::numeric_limits<float>::quiet_NaN(), dtype());
          ops_->sum_parts(parts, residual, sum);
          EXPECT_TRUE(same_bits(sum, sum_in_order(parts, residual, dtype())))
              << count << " parts of " << of_parts << (has_residual ? ", residual" : "") << "; seed " << kPartsSeed;
          std::reverse(parts.begin(), parts.end());
          if (!same_bits(sum, sum_in_order(parts, residual, dtype()))) ++different;
        }
      }
    }
  }
  EXPECT_GT(different, 3) << "another order of the parts would not be noticed; seed " << kPartsSeed;
}

// The residual is added as add() adds it.
TEST_P(TensorPartsTest, AResidualIsAddedToTheRoundedSum) {
  const std::vector<Tensor> parts = {rough(draw_, {4, 24}, at::kFloat), rough(draw_, {4, 24}, at::kFloat)};
  const Tensor residual = rough(draw_, {4, 24}, dtype()), rounded = at::empty({4, 24}, dtype());
  const Tensor sum = at::empty({4, 24}, dtype());
  ops_->sum_parts(parts, Tensor(), rounded);
  ops_->sum_parts(parts, residual, sum);
  EXPECT_TRUE(same_bits(sum, ops_->add(residual, rounded))) << "seed " << kPartsSeed;
}

// Parts of a table one after the other are the table: each id's row comes from one of them, the others give zeros.
TEST_P(TensorPartsTest, PartsOfATableAreTheTable) {
  for (const int64_t E : {37, 40}) {
    const int64_t V = 11;
    const Tensor table = draw_.normal({V, E}, dtype()), dy = draw_.normal({9, E}, dtype());
    const Tensor ids = to_tensor({3, 0, 10, 3, 4, 7, 5, 6, 10});
    const Tensor whole = ops_->embedding(table, ids), dwhole = draw_.normal({V, E}, at::kFloat);
    const std::vector<int64_t> begins = {0, 4, 7, V};
    Tensor sum = at::zeros({9, E});
    std::vector<Tensor> gradients;
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
      const int64_t begin = begins[i], count = begins[i + 1] - begin;
      const Tensor rows = ops_->embedding_part(table.narrow(0, begin, count), begin, ids);
      EXPECT_EQ(rows.scalar_type(), dtype());
      sum.add_(rows);
      gradients.push_back(dwhole.narrow(0, begin, count).clone());
      ops_->embedding_part_backward(dy, begin, ids, gradients.back());
      for (int64_t t = 0; t < 9; ++t) {
        const int64_t id = ids[t].item<int32_t>();
        const bool is_here = id >= begin && id < begin + count;
        EXPECT_TRUE(same_bits(rows[t], is_here ? table[id] : at::zeros({E}, dtype()))) << "id " << id;
      }
    }
    EXPECT_TRUE(same_bits(sum.to(dtype()), whole)) << "seed " << kPartsSeed;
    ops_->embedding_backward(dy, ids, dwhole);
    EXPECT_TRUE(same_bits(at::cat(gradients), dwhole)) << "seed " << kPartsSeed;
  }
}

// The result is a part of a sum, to which the other ranks add theirs. Rounded it is the gradient of the model's dtype.
TEST_P(TensorPartsTest, TheGradientOfAnInputIsTheSameInFloat32BeforeItsRounding) {
  const Tensor w = draw_.normal({48, 40}, dtype());
  for (const at::ScalarType dy_dtype : {dtype(), at::kFloat}) {
    const Tensor dy = draw_.normal({13, 48}, dy_dtype), wide = ops_->linear_grad_input(dy, w, at::kFloat);
    EXPECT_EQ(wide.scalar_type(), at::kFloat);
    EXPECT_TRUE(same_bits(wide.to(dtype()), ops_->linear_grad_input(dy, w, dtype()))) << "seed " << kPartsSeed;
  }
}

}  // namespace
}  // namespace tandem::device
