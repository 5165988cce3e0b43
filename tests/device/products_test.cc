// Tests of matrix products for the errors that libraries may have: a sum that loses its tail, a row whose bits depend
// on how many rows there are. They run at the widths of real models on a GPU, at small ones on the CPU.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/device/draw.h"

namespace tandem::device {
namespace {

class ProductsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (ops_ == nullptr) GTEST_SKIP() << why_missing(GetParam());
  }
  bool is_gpu() const { return GetParam() == "cuda"; }
  // These are qkv, o, gate_up and down of Qwen3-4B, the narrowest of 0.6B, and the router of 30B-A3B.
  std::vector<Widths> widths() const {
    if (!is_gpu()) return {{48, 64}, {64, 40}};
    return {{6144, 2560}, {2560, 4096}, {19456, 2560}, {2560, 9728}, {1024, 2048}, {128, 2048}};
  }
  std::unique_ptr<Ops> ops_ = make_backend(GetParam(), 2);
};

INSTANTIATE_TEST_SUITE_P(Backends, ProductsTest, testing::ValuesIn(and_modules({"auto"})),
                         [](const auto& info) { return info.param; });

// A public report says that a library with split sums drops the last terms of some lengths. In the gradient of a weight
// the terms are the tokens, of which there may be any number.
TEST_P(ProductsTest, GradWeightOfOnesCountsItsRows) {
  std::vector<int64_t> counts = {1, 2, 3, 5, 7, 13, 15, 17, 31, 33, 63, 65, 100, 127, 129, 255, 257, 511, 513, 1001};
  if (is_gpu()) counts.insert(counts.end(), {1279, 2047, 2049, 4095, 4097, 8191, 8447});
  for (const auto [N, K] : widths()) {
    for (const int64_t T : counts) {
      if (is_gpu() && N * K > 20'000'000 && T % 3 != 1) continue;
      const at::TensorOptions narrow(at::kBFloat16);
      const Tensor dw = at::full({N, K}, 0.5, at::TensorOptions(at::kFloat));
      ops_->linear_grad_weight(at::ones({T, N}, narrow), at::ones({T, K}, narrow), dw, GradientUse::kAdd);
      const auto want = static_cast<float>(T) + 0.5F;
      ASSERT_EQ(dw.min().item<float>(), want) << "T " << T << ", " << N << " x " << K;
      ASSERT_EQ(dw.max().item<float>(), want) << "T " << T << ", " << N << " x " << K;
    }
  }
}

// A row has one order of its sums, whatever kernel multiplies it.
TEST_P(ProductsTest, RowsAreEqualInBatchesOfEverySize) {
  TestDraw draw(11);
  for (const auto [N, K] : widths()) {
    const int64_t most = is_gpu() ? 2048 : 300;
    // A few numbers are repeated: drawing millions one by one takes longer than multiplying them.
    const Tensor x = draw.normal({most, 1}, at::kFloat).mul(draw.normal({1, K}, at::kFloat)).to(at::kBFloat16);
    const Tensor w = draw.normal({N, 1}, at::kFloat).mul(draw.normal({1, K}, at::kFloat)).to(at::kBFloat16);
    for (const at::ScalarType out : {at::kBFloat16, at::kFloat}) {
      const Tensor all = ops_->linear(x, w, out);
      for (const int64_t T :
           {1, 2, 3, 4, 7, 8, 9, 16, 31, 33, 64, 65, 100, 128, 129, 255, 256, 257, 300, 511, 1000, 1500}) {
        if (T > most) break;
        const int64_t begin = draw.integer(0, most - T);
        const Tensor some = ops_->linear(x.narrow(0, begin, T).contiguous(), w, out);
        const Tensor want = all.narrow(0, begin, T).contiguous();
        ASSERT_EQ(std::memcmp(some.const_data_ptr(), want.const_data_ptr(), want.nbytes()), 0)
            << T << " rows of " << N << " x " << K << " have other bits than among " << most;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::device
