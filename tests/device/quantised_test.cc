// Quantised matrices: their products are those of the bfloat16 weights that they stand for, bit for bit, whatever the
// number of rows and the cut of the work.
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "device/allocator_hook.h"
#include "device/registry.h"
#include "tests/device/draw.h"

namespace tandem::device {
namespace {

// A matrix of random codes: any byte is one.
QuantisedMatrix random_matrix(TestDraw& draw, Quantisation quantisation, const std::vector<int64_t>& rows,
                              int64_t columns) {
  QuantisedMatrix matrix;
  int64_t row = 0;
  for (const int64_t count : rows) {
    matrix.parts.push_back(
        quantised_part(quantisation, row, count, columns, matrix.parts.empty() ? 0 : matrix.parts.back().end_byte));
    row += count;
  }
  matrix.bytes = at::empty({matrix.parts.back().end_byte}, at::kByte);
  auto* const bytes = matrix.bytes.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < matrix.bytes.numel(); ++i) bytes[i] = static_cast<uint8_t>(draw.integer(0, 255));
  for (const QuantisedPart& part : matrix.parts) {
    const auto set = [&](int64_t byte, int64_t count, double scale) {
      auto* const numbers = reinterpret_cast<float*>(bytes + byte);
      for (int64_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(scale * (draw.uniform() - 0.5));
    };
    set(part.scales, part.num_scales(), 0.2);
    if (quantisation == Quantisation::kNf4) set(part.table, kNf4TableSize + 1, 2.0);
  }
  return matrix;
}

class QuantisedTest : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Ops> ops_ = make_backend(GetParam(), 2);
};

INSTANTIATE_TEST_SUITE_P(Backends, QuantisedTest, testing::ValuesIn(backends_with(&Footprint::has_quantised)),
                         [](const auto& info) { return info.param; });

bool is_same(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

TEST_P(QuantisedTest, AWeightIsTheNumberThatItsCodeStandsFor) {
  TestDraw draw(3);
  for (const Quantisation quantisation : {Quantisation::kNf4, Quantisation::kInt8}) {
    const QuantisedMatrix w = random_matrix(draw, quantisation, {37, 1, 20}, 45);
    const Tensor weights = ops_->dequantise(w);
    ASSERT_EQ(weights.sizes(), at::IntArrayRef({58, 45}));
    const auto* const bytes = static_cast<const std::byte*>(w.bytes.const_data_ptr());
    for (const QuantisedPart& part : w.parts) {
      for (int64_t i = 0; i < part.num_weights(); ++i) {
        const auto got = static_cast<float>(weights.const_data_ptr<at::BFloat16>()[part.row_begin * 45 + i]);
        ASSERT_EQ(got, static_cast<float>(at::BFloat16(weight_at(quantised_bytes(part, bytes), i)))) << i;
      }
    }
  }
}

// Rows on both sides of each limit between kernels, widths on both sides of blocks, tiles, panels and pieces.
TEST_P(QuantisedTest, ProductsAreThoseOfTheWeightsBitForBit) {
  constexpr uint64_t kSeed = 29;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  TestDraw draw(kSeed);
  for (const Quantisation quantisation : {Quantisation::kNf4, Quantisation::kInt8}) {
    std::vector<std::pair<std::vector<int64_t>, int64_t>> cases = {
        {{96, 48, 40}, 64},  {{33}, 320}, {{70, 3}, 40}, {{130, 130}, 192},
        {{48, 16, 16}, 512}, {{48}, 768}, {{40, 8}, 256}};
    // Matrices of Qwen3-4B, whose strips go round a GPU's rings more than once.
    if (is_module(GetParam())) cases.insert(cases.end(), {{{9728, 9728}, 2560}, {{4096, 1024, 1024}, 2560}});
    if (is_module(GetParam())) cases.insert(cases.end(), {{{2560}, 4096}, {{2560}, 9728}});
    for (const auto& [rows, K] : cases) {
      const QuantisedMatrix w = random_matrix(draw, quantisation, rows, K);
      const Tensor weights = ops_->dequantise(w);
      for (const int64_t T : {1, 2, 3, 4, 5, 8, 9, 16, 17, 29, 32, 33, 64, 65, 520}) {
        if (T == 520 && GetParam() == "scalar")
          continue;  // plain C++ would take ten seconds, and packs nothing by size
        SCOPED_TRACE(fmt::format("{} rows by {} x {}", T, weights.size(0), K));
        const Tensor x = draw.normal({T, K}, at::kBFloat16);
        const Tensor dy = draw.normal({T, weights.size(0)}, at::kBFloat16);
        const Tensor residual = draw.normal({T, weights.size(0)}, at::kBFloat16);
        ASSERT_TRUE(is_same(ops_->linear_quantised_add(x, w, residual), ops_->linear_add(x, weights, residual)));
        for (const at::ScalarType out : {at::kBFloat16, at::kFloat}) {
          ASSERT_TRUE(is_same(ops_->linear_quantised(x, w, out), ops_->linear(x, weights, out)));
          ASSERT_TRUE(
              is_same(ops_->linear_quantised_grad_input(dy, w, out), ops_->linear_grad_input(dy, weights, out)));
        }
      }
    }
  }
}

// Hears how many bytes the tensors of a backend ask for, and leaves the requests to LibTorch.
class HeardRequests final : public AllocatorHook {
 public:
  explicit HeardRequests(const std::string& backend)
      : driver_(open_memory(is_module(backend) ? parse_device(backend) : DeviceSpec{})) {
    driver_.set_tensor_source(this);
  }
  ~HeardRequests() override { driver_.set_tensor_source(nullptr); }
  std::byte* allocate(int64_t bytes) override {
    most_ = std::max(most_, bytes);
    return nullptr;
  }
  bool free(std::byte* /*address*/) override { return false; }
  // Returns the bytes of the largest request of `work`.
  int64_t most_of(const std::function<void()>& work) {
    most_ = 0;
    work();
    return most_;
  }

 private:
  MemoryDriver driver_;
  int64_t most_ = 0;
};

constexpr int64_t kBytesOfWeight = 2;  // of bfloat16

// Else the weights would be written and read again: a kernel for few rows would be there, and not be used.
TEST_P(QuantisedTest, FewRowsTakeNoMemoryForWeights) {
  HeardRequests requests(GetParam());
  TestDraw draw(41);
  for (const Quantisation quantisation : {Quantisation::kNf4, Quantisation::kInt8}) {
    const QuantisedMatrix w = random_matrix(draw, quantisation, {96, 64, 32}, 512);
    const int64_t bytes = w.num_rows() * w.num_columns() * kBytesOfWeight;
    EXPECT_GE(requests.most_of([&] { ops_->dequantise(w); }), bytes);
    for (const int64_t T : {1, 8, 16, 33, 64}) {
      const Tensor x = draw.normal({T, 512}, at::kBFloat16);
      EXPECT_LT(requests.most_of([&] { ops_->linear_quantised(x, w, at::kBFloat16); }), bytes) << T << " rows";
    }
  }
}

class QuantisedExpertsTest : public QuantisedTest {};

INSTANTIATE_TEST_SUITE_P(Backends, QuantisedExpertsTest, testing::ValuesIn(backends_with(&Footprint::has_quantised)),
                         [](const auto& info) { return info.param; });

// An expert has one or two parts; some experts have no place, and one may have nearly all.
TEST_P(QuantisedExpertsTest, ProductsAreThoseOfTheWeightsBitForBit) {
  constexpr uint64_t kSeed = 31;
  constexpr int64_t X = 5;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  TestDraw draw(kSeed);
  // A GPU multiplies with the codes themselves where parts are of sixteens of rows and sums of 128s of terms.
  std::vector<std::pair<std::vector<int64_t>, int64_t>> cases = {
      {{48, 48}, 64}, {{64}, 48}, {{37, 70}, 320}, {{48, 96}, 384}, {{80}, 256}};
  if (is_module(GetParam())) cases.insert(cases.end(), {{{768, 768}, 2048}, {{2048}, 768}});  // Qwen3-30B-A3B's
  for (const Quantisation quantisation : {Quantisation::kNf4, Quantisation::kInt8}) {
    for (const auto& [rows_of_expert, K] : cases) {
      std::vector<int64_t> rows;
      for (int64_t e = 0; e < X; ++e) rows.insert(rows.end(), rows_of_expert.begin(), rows_of_expert.end());
      const QuantisedMatrix w = random_matrix(draw, quantisation, rows, K);
      const Tensor weights = ops_->dequantise(w);
      const int64_t N = weights.size(0) / X;
      for (const int64_t T : {1, 2, 7, 40, 150, 400}) {
        if (T == 400 && !is_module(GetParam())) continue;  // so many that a GPU makes the weights first
        SCOPED_TRACE(fmt::format("{} tokens by experts of {} x {}", T, N, K));
        const Tensor logits_TX = draw.normal({T, X}, at::kFloat);
        logits_TX.select(1, 3).add_(2.0);
        const Routing routing = ops_->route(logits_TX, {.chosen = 2, .normalises = true});
        for (const RowsAre are : {RowsAre::kTokens, RowsAre::kPlaces}) {
          const int64_t M = are == RowsAre::kTokens ? T : routing.num_places();
          const Tensor x = draw.normal({M, K}, at::kBFloat16), dy = draw.normal({M, N}, at::kBFloat16);
          for (const at::ScalarType out : {at::kBFloat16, at::kFloat}) {
            ASSERT_TRUE(is_same(ops_->linear_of_experts_quantised(x, are, w, routing, out),
                                ops_->linear_of_experts(x, are, weights, routing, out)));
            ASSERT_TRUE(is_same(ops_->linear_of_experts_quantised_grad_input(dy, are, w, routing, out),
                                ops_->linear_of_experts_grad_input(dy, are, weights, routing, out)));
          }
        }
      }
    }
  }
}

TEST_P(QuantisedExpertsTest, FewPlacesTakeNoMemoryForWeights) {
  constexpr int64_t X = 5;
  HeardRequests requests(GetParam());
  TestDraw draw(43);
  for (const Quantisation quantisation : {Quantisation::kNf4, Quantisation::kInt8}) {
    const QuantisedMatrix w = random_matrix(draw, quantisation, {48, 96, 48, 96, 48, 96, 48, 96, 48, 96}, 384);
    const int64_t bytes = w.num_rows() * w.num_columns() * kBytesOfWeight;
    for (const int64_t T : {1, 7, 40, 150}) {
      const Routing routing = ops_->route(draw.normal({T, X}, at::kFloat), {.chosen = 2, .normalises = true});
      const Tensor x = draw.normal({T, 384}, at::kBFloat16);
      const auto multiply = [&] { ops_->linear_of_experts_quantised(x, RowsAre::kTokens, w, routing, at::kBFloat16); };
      EXPECT_LT(requests.most_of(multiply), bytes) << T << " tokens";
    }
  }
}

}  // namespace
}  // namespace tandem::device
