// Dropout: every backend that has it drops the same elements, those of the rule of device/dropout.h.
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/device/draw.h"

namespace tandem::device {
namespace {

class DropoutTest : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Ops> ops_ = make_backend(GetParam(), 2);
};

INSTANTIATE_TEST_SUITE_P(Backends, DropoutTest, testing::ValuesIn(backends_with(&Footprint::has_dropout)),
                         [](const auto& info) { return info.param; });

constexpr uint64_t kSeed = 20261128;

Tensor random_keys(TestDraw& draw, int64_t rows) {
  const Tensor keys = at::empty({rows}, at::kLong);
  for (int64_t t = 0; t < rows; ++t) {
    const auto half = [&] { return static_cast<uint64_t>(draw.integer(0, (int64_t{1} << 32) - 1)); };
    keys.mutable_data_ptr<int64_t>()[t] = static_cast<int64_t>(half() << 32 | half());
  }
  return keys;
}

TEST_P(DropoutTest, KeepsWhatTheRuleKeepsAndScalesIt) {
  TestDraw draw(kSeed);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t width : {1, 3, 4, 7, 64, 1026, 2560}) {
      for (const double rate : {0.0, 0.05, 0.5, 0.99}) {
        SCOPED_TRACE(fmt::format("width {}, rate {}", width, rate));
        const int64_t rows = draw.integer(0, 40);
        const Tensor x = draw.normal({rows, width}, dtype), keys = random_keys(draw, rows);
        const Dropout dropout = {.rate = rate, .stream = static_cast<uint64_t>(draw.integer(0, 1 << 30)) << 20};
        const Tensor y = ops_->dropout(x, keys, dropout);
        ASSERT_EQ(y.sizes(), x.sizes());
        const Tensor want = at::empty_like(x);
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t c = 0; c < width; ++c) {
            const bool kept = is_kept(dropout, static_cast<uint64_t>(keys.const_data_ptr<int64_t>()[t]), c);
            const auto set = [&](const auto* from, auto* to) {
              using Element = std::remove_pointer_t<decltype(to)>;
              const int64_t at = t * width + c;
              to[at] = kept ? static_cast<Element>(static_cast<float>(from[at]) * dropout.scale()) : Element(0.0F);
            };
            if (dtype == at::kFloat) {
              set(x.const_data_ptr<float>(), want.mutable_data_ptr<float>());
            } else {
              set(x.const_data_ptr<at::BFloat16>(), want.mutable_data_ptr<at::BFloat16>());
            }
          }
        }
        EXPECT_TRUE(same_bits(y, want)) << "seed " << kSeed;
      }
    }
  }
}

TEST_P(DropoutTest, DropsTheShareAndEachStreamOthers) {
  TestDraw draw(kSeed + 1);
  constexpr int64_t kRows = 100, kWidth = 1000;
  constexpr double kRate = 0.25;
  const Tensor ones = draw.normal({kRows, kWidth}, at::kFloat, /*mean=*/1.0, /*scale=*/0.0);
  const Tensor keys = random_keys(draw, kRows);
  const auto dropped = [&](uint64_t stream) {
    std::vector<bool> result;
    for (const double y : to_values(ops_->dropout(ones, keys, {.rate = kRate, .stream = stream})))
      result.push_back(y == 0.0);
    return result;
  };
  const std::vector<bool> first = dropped(7), second = dropped(8);
  int64_t count = 0, both = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    count += first[i] ? 1 : 0;
    both += first[i] && second[i] ? 1 : 0;
  }
  // Five standard deviations of a count of independent elements.
  const auto is_near = [](int64_t n, double share) {
    const double expected = share * kRows * kWidth;
    return std::abs(static_cast<double>(n) - expected) < 5.0 * std::sqrt(expected * (1.0 - share));
  };
  EXPECT_TRUE(is_near(count, kRate)) << count;
  EXPECT_TRUE(is_near(both, kRate * kRate)) << both;
}

}  // namespace
}  // namespace tandem::device
