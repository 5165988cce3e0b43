// Tests that every backend's operations of experts give what the float64 reference gives, in both dtypes: few tokens
// and many, experts without a place, one expert that has all of them, ties between logits.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "tests/device/draw.h"
#include "tests/device/experts_reference.h"
#include "tests/device/reference.h"

namespace tandem::device {
namespace {

using reference::Choice;
using reference::Ids;
using reference::Values;

constexpr uint64_t kExpertsSeed = 11;
constexpr double kTolerance = 1e-5;  // of the largest number, for float32 sums of about a hundred products

Ids to_ids(const Tensor& x) {
  const Tensor flat = x.contiguous();
  return {flat.const_data_ptr<int32_t>(), flat.const_data_ptr<int32_t>() + flat.numel()};
}

struct Dims {
  int64_t T, X, C, E, F;
  bool normalises;
};
void PrintTo(const Dims& d, std::ostream* out) {
  *out << d.T << " tokens, " << d.C << " of " << d.X << " experts, E " << d.E << ", F " << d.F;
}
// The last two have shapes that kernels of a GPU take, with few places of an expert and with many.
constexpr Dims kDims[] = {{1, 8, 2, 64, 48, true},  {7, 4, 4, 32, 24, false},   {33, 16, 4, 96, 40, false},
                          {70, 8, 1, 33, 17, true}, {5, 128, 8, 128, 64, true}, {300, 16, 2, 128, 64, true}};

class ExpertsTest : public testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override {
    if (ops_ == nullptr) GTEST_SKIP() << why_missing(GetParam().name);
  }

  at::ScalarType dtype() const { return GetParam().dtype; }
  Tensor normal(at::IntArrayRef shape, double scale = 1.0) { return draw_.normal(shape, dtype(), 0.0, scale); }

  void expect_close(const std::string& what, const Tensor& got, const Values& want, double tolerance = kTolerance) {
    const Values values = to_values(got);
    ASSERT_EQ(values.size(), want.size()) << what;
    double largest = 1e-3;
    for (const double value : want) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < want.size(); ++i) {
      const double rounding = got.scalar_type() == at::kBFloat16 ? std::abs(want[i]) * 0x1.0p-8 : 0.0;
      ASSERT_LE(std::abs(values[i] - want[i]), tolerance * largest + rounding)
          << what << " of " << ops_->name() << ", element " << i << ": " << values[i] << ", expected " << want[i];
      ASSERT_FALSE(std::isnan(values[i])) << what << ", element " << i;
    }
  }

  // Experts 1 and 2 of three tokens' neighbours are equal, and expert 3 is chosen by nobody.
  Tensor logits(const Dims& d) {
    const Tensor x = draw_.normal({d.T, d.X}, at::kFloat, 0.0, 2.0);
    auto* const data = x.mutable_data_ptr<float>();
    for (int64_t t = 0; t < d.T; ++t) {
      if (t % 3 == 0) data[t * d.X + 2] = data[t * d.X + 1];
      if (d.C < d.X) data[t * d.X + 3] = -9.0F - static_cast<float>(t);
    }
    return x;
  }

  TestDraw draw_{kExpertsSeed};
  std::unique_ptr<Ops> ops_ = make_backend(GetParam().name, GetParam().name == "aten" ? 1 : 2);
};

INSTANTIATE_TEST_SUITE_P(Backends, ExpertsTest, testing::ValuesIn(in_both_dtypes(all_backends())),
                         [](const auto& info) {
                           return info.param.name + (info.param.dtype == at::kFloat ? "_float32" : "_bfloat16");
                         });

TEST_P(ExpertsTest, RouteChoosesTheLargestLogitsAndOrdersPlaces) {
  for (const Dims& d : kDims) {
    SCOPED_TRACE(testing::PrintToString(d));
    const Tensor x = logits(d);
    const Routing routing = ops_->route(x, {.chosen = d.C, .normalises = d.normalises});
    const Choice want = reference::route(to_values(x), d.X, d.C, d.normalises);
    EXPECT_EQ(to_ids(routing.ids_TC), want.ids);
    expect_close("weights", routing.weights_TC, want.weights);
    const reference::Places order = reference::order_places(want.ids, d.X);
    EXPECT_EQ(to_ids(routing.offsets_X1), order.offsets);
    EXPECT_EQ(to_ids(routing.places_TC), order.places);
    EXPECT_EQ(to_ids(routing.sources_P), order.sources);
  }
}

TEST_P(ExpertsTest, EqualLogitsGoToTheLowerId) {
  const Tensor x = at::full({1, 6}, 0.0F);
  auto* const data = x.mutable_data_ptr<float>();
  const auto chosen = [&] { return to_ids(ops_->route(x, {.chosen = 2, .normalises = true}).ids_TC); };
  EXPECT_EQ(chosen(), (Ids{0, 1}));
  data[0] = data[2] = -0.0F;
  EXPECT_EQ(chosen(), (Ids{0, 1})) << "-0 is 0";
  data[4] = 1.0F;
  EXPECT_EQ(chosen(), (Ids{0, 4}));
  data[0] = -1.0F;
  EXPECT_EQ(chosen(), (Ids{1, 4}));
}

TEST_P(ExpertsTest, ALogitThatIsNotFiniteShowsInItsRowAlone) {
  for (const bool normalises : {true, false}) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      const Tensor x = draw_.normal({3, 8}, at::kFloat);
      x.mutable_data_ptr<float>()[8 + 5] = bad;
      const Routing routing = ops_->route(x, {.chosen = 2, .normalises = normalises});
      const Values weights = to_values(routing.weights_TC);
      const Ids ids = to_ids(routing.ids_TC);
      for (size_t t = 0; t < 3; ++t) {
        EXPECT_EQ(std::isnan(weights[2 * t]) && std::isnan(weights[2 * t + 1]), t == 1) << bad << ", row " << t;
        EXPECT_TRUE(ids[2 * t] >= 0 && ids[2 * t] < ids[2 * t + 1] && ids[2 * t + 1] < 8) << bad << ", row " << t;
      }
    }
  }
}

TEST_P(ExpertsTest, RouteBackwardIsTheDerivative) {
  for (const Dims& d : kDims) {
    SCOPED_TRACE(testing::PrintToString(d));
    const RouteRule rule{.chosen = d.C, .normalises = d.normalises};
    const Tensor x = logits(d), dweights = draw_.normal({d.T, d.C}, at::kFloat);
    const Routing routing = ops_->route(x, rule);
    const Choice choice = reference::route(to_values(x), d.X, d.C, d.normalises);
    expect_close("dlogits", ops_->route_backward(dweights, x, routing, rule, dtype()),
                 reference::route_backward(to_values(dweights), to_values(x), choice, d.X, d.C, d.normalises));
  }
}

// The reference of products: each place's row by itself.
class ExpertProducts : public ExpertsTest {
 protected:
  struct Case {
    Routing routing;
    Ids experts, tokens;  // of each place
  };
  Case make(const Dims& d) {
    Case c{.routing = ops_->route(logits(d), {.chosen = d.C, .normalises = d.normalises}), .experts = {}, .tokens = {}};
    const Ids ids = to_ids(c.routing.ids_TC);
    for (const int32_t source : to_ids(c.routing.sources_P)) {
      c.experts.push_back(ids[static_cast<size_t>(source)]);
      c.tokens.push_back(source / static_cast<int32_t>(d.C));
    }
    return c;
  }
  static int64_t num_rows(const Dims& d, RowsAre rows) { return rows == RowsAre::kTokens ? d.T : d.T * d.C; }
  static Values row_of(const Values& x, int64_t width, const Case& c, size_t place, RowsAre rows) {
    const auto row = rows == RowsAre::kTokens ? static_cast<int64_t>(c.tokens[place]) : static_cast<int64_t>(place);
    return {x.begin() + row * width, x.begin() + (row + 1) * width};
  }
  // Returns the N rows of an expert.
  static Values part_of(const Values& w, int64_t size, int32_t expert) {
    return {w.begin() + expert * size, w.begin() + (expert + 1) * size};
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, ExpertProducts, testing::ValuesIn(in_both_dtypes(all_backends())),
                         [](const auto& info) {
                           return info.param.name + (info.param.dtype == at::kFloat ? "_float32" : "_bfloat16");
                         });

TEST_P(ExpertProducts, EachPlaceIsMultipliedByItsExpert) {
  for (const Dims& d : kDims) {
    SCOPED_TRACE(testing::PrintToString(d));
    const Case c = make(d);
    const int64_t N = 2 * d.F, K = d.E;
    const Tensor w = normal({d.X * N, K});
    const Values w_values = to_values(w);
    for (const RowsAre rows : {RowsAre::kTokens, RowsAre::kPlaces}) {
      const Tensor x = normal({num_rows(d, rows), K}), dy = normal({num_rows(d, rows), N});
      const Values x_values = to_values(x), dy_values = to_values(dy);
      Values want_y, want_dx;
      for (size_t p = 0; p < c.experts.size(); ++p) {
        const Values part = part_of(w_values, N * K, c.experts[p]);
        const Values y = reference::linear(row_of(x_values, K, c, p, rows), part, 1, K, N);
        const Values dy_row = row_of(dy_values, N, c, p, rows);
        want_y.insert(want_y.end(), y.begin(), y.end());
        for (int64_t k = 0; k < K; ++k) {
          double sum = 0.0;
          for (int64_t n = 0; n < N; ++n) sum += dy_row[static_cast<size_t>(n)] * part[static_cast<size_t>(n * K + k)];
          want_dx.push_back(sum);
        }
      }
      for (const at::ScalarType out : {at::kFloat, dtype()}) {
        expect_close("linear_of_experts", ops_->linear_of_experts(x, rows, w, c.routing, out), want_y);
        expect_close("linear_of_experts_grad_input", ops_->linear_of_experts_grad_input(dy, rows, w, c.routing, out),
                     want_dx);
      }
    }
  }
}

TEST_P(ExpertProducts, WeightGradientsAreSetOrAddedAndZeroWithoutPlaces) {
  for (const Dims& d : kDims) {
    SCOPED_TRACE(testing::PrintToString(d));
    const Case c = make(d);
    const int64_t N = 2 * d.F, K = d.E;
    for (const auto& [dy_rows, x_rows] :
         {std::pair{RowsAre::kTokens, RowsAre::kPlaces}, std::pair{RowsAre::kPlaces, RowsAre::kTokens}}) {
      const Tensor dy = normal({num_rows(d, dy_rows), N}), x = normal({num_rows(d, x_rows), K});
      const Values dy_values = to_values(dy), x_values = to_values(x);
      Values want(static_cast<size_t>(d.X * N * K), 0.0);
      for (size_t p = 0; p < c.experts.size(); ++p) {
        const Values dy_row = row_of(dy_values, N, c, p, dy_rows), x_row = row_of(x_values, K, c, p, x_rows);
        double* const part = want.data() + c.experts[p] * N * K;
        for (int64_t n = 0; n < N; ++n)
          for (int64_t k = 0; k < K; ++k)
            part[n * K + k] += dy_row[static_cast<size_t>(n)] * x_row[static_cast<size_t>(k)];
      }
      const Tensor dw = at::full({d.X * N, K}, NAN);
      ops_->linear_of_experts_grad_weight(dy, dy_rows, x, x_rows, dw, c.routing, GradientUse::kSet);
      expect_close("set", dw, want);
      ops_->linear_of_experts_grad_weight(dy, dy_rows, x, x_rows, dw, c.routing, GradientUse::kAdd);
      for (double& value : want) value *= 2.0;
      expect_close("added", dw, want);
      if (d.C == d.X) continue;
      const Values of_unused = part_of(to_values(dw), N * K, 3);
      EXPECT_TRUE(std::ranges::all_of(of_unused, [](double v) { return v == 0.0; })) << "nobody chooses expert 3";
    }
  }
}

TEST_P(ExpertProducts, PlacesOfATokenAreAddedUp) {
  for (const Dims& d : kDims) {
    SCOPED_TRACE(testing::PrintToString(d));
    const Case c = make(d);
    const Values ones(static_cast<size_t>(d.T * d.C), 1.0);
    for (const at::ScalarType y_dtype : {at::kFloat, dtype()}) {
      for (const at::ScalarType out : {at::kFloat, dtype()}) {
        const Tensor y = draw_.normal({d.T * d.C, d.E}, y_dtype), residual = draw_.normal({d.T, d.E}, out);
        const Ids places = to_ids(c.routing.places_TC);
        Values want = reference::sum_of_experts(to_values(y), ones, places, d.C, d.E);
        expect_close("sum", ops_->sum_of_experts(y, {}, c.routing, {}, out), want);
        want = reference::sum_of_experts(to_values(y), to_values(c.routing.weights_TC), places, d.C, d.E);
        const Values added = to_values(residual);
        for (size_t i = 0; i < want.size(); ++i) want[i] += added[i];
        expect_close("weighted sum", ops_->sum_of_experts(y, c.routing.weights_TC, c.routing, residual, out), want);
      }
    }
  }
}

TEST_P(ExpertProducts, WeightedSiluBackwardIsThatOfSiluWithTheWeight) {
  for (const Dims& d : kDims) {
    SCOPED_TRACE(testing::PrintToString(d));
    const Case c = make(d);
    const int64_t P = d.T * d.C;
    const Tensor da = normal({P, d.F}), gate_up = normal({P, 2 * d.F}, 2.0);
    const Values weights = to_values(c.routing.weights_TC), silu = reference::silu_mul(to_values(gate_up), d.F);
    const Ids sources = to_ids(c.routing.sources_P);
    Values gradient = to_values(da), weighted = silu, dweights(static_cast<size_t>(P), 0.0);
    for (size_t i = 0; i < silu.size(); ++i) {
      const auto source = static_cast<size_t>(sources[i / static_cast<size_t>(d.F)]);
      dweights[source] += gradient[i] * silu[i];
      gradient[i] *= weights[source];
      weighted[i] *= weights[source];
    }
    const Ops::WeightedSilu got = ops_->weighted_silu_backward(da, gate_up, c.routing);
    expect_close("weighted", got.weighted_PF, weighted);
    expect_close("dweights", got.dweights_TC, dweights);
    expect_close("dgate_up", got.dgate_up_P2F, reference::silu_mul_backward(gradient, to_values(gate_up), d.F));
  }
}

// Kernels and cuts depend on how many rows an expert has, and the bits of a row do not: they are those of products of
// one expert alone.
class CpuExpertGroups : public ExpertsTest {
 protected:
  // Returns the routing that gives each expert so many tokens, which lie in a drawn order.
  Routing route_to(const std::vector<int64_t>& rows_of_experts) {
    Ids experts;
    for (size_t e = 0; e < rows_of_experts.size(); ++e)
      experts.insert(experts.end(), static_cast<size_t>(rows_of_experts[e]), static_cast<int32_t>(e));
    const auto T = static_cast<int64_t>(experts.size()), X = static_cast<int64_t>(rows_of_experts.size());
    const Tensor logits = at::full({T, X}, 0.0F);
    const Ids tokens = draw_.permutation(T);
    for (size_t i = 0; i < experts.size(); ++i) logits.mutable_data_ptr<float>()[tokens[i] * X + experts[i]] = 1.0F;
    return ops_->route(logits, {.chosen = 1, .normalises = true});
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, CpuExpertGroups, testing::ValuesIn(in_both_dtypes(cpu_isas())),
                         [](const auto& info) {
                           return info.param.name + (info.param.dtype == at::kFloat ? "_float32" : "_bfloat16");
                         });

TEST_P(CpuExpertGroups, HaveTheBitsOfEachExpertAlone) {
  struct Case {
    std::vector<int64_t> rows_of_experts;
    int64_t K, N;
  };
  // Rows of no expert, of weights that are used as they lie, of one block and of many. Widths are a multiple of 32 or
  // not; the last rows and the last gradients are more than are packed at a time.
  const Case cases[] = {{{0, 1, 4, 5, 12, 33, 0, 130, 900}, 64, 96}, {{3, 0, 70, 1}, 40, 34}, {{300, 300}, 8192, 16}};
  for (const Case& c : cases) {
    if (c.K == 8192 && GetParam().name == "scalar") continue;  // plain C++ would take half a minute
    SCOPED_TRACE("K " + std::to_string(c.K));
    const auto X = static_cast<int64_t>(c.rows_of_experts.size());
    const Routing routing = route_to(c.rows_of_experts);
    const int64_t T = routing.num_tokens();
    const Tensor x = normal({T, c.K}), dy = normal({T, c.N}), w = normal({X * c.N, c.K});
    const Tensor x_of_places = x.index_select(0, routing.sources_P),
                 dy_of_places = dy.index_select(0, routing.sources_P);
    const Tensor dw = at::full({X * c.N, c.K}, 0.5F);
    for (const auto& [rows, x_in, dy_in] :
         {std::tuple{RowsAre::kTokens, x, dy}, std::tuple{RowsAre::kPlaces, x_of_places, dy_of_places}}) {
      const Tensor y = ops_->linear_of_experts(x_in, rows, w, routing, dtype());
      const Tensor dx = ops_->linear_of_experts_grad_input(dy_in, rows, w, routing, at::kFloat);
      for (const GradientUse use : {GradientUse::kSet, GradientUse::kAdd}) {
        ops_->linear_of_experts_grad_weight(dy_in, rows, x_in, rows, dw, routing, use);
        int64_t first = 0;
        for (int64_t e = 0; e < X; ++e) {
          const int64_t count = c.rows_of_experts[static_cast<size_t>(e)];
          if (count == 0) continue;
          SCOPED_TRACE("expert " + std::to_string(e) + " with " + std::to_string(count));
          const Tensor own_x = x_of_places.narrow(0, first, count), own_dy = dy_of_places.narrow(0, first, count);
          const Tensor own_w = w.narrow(0, e * c.N, c.N), own_dw = at::full({c.N, c.K}, 0.0F);
          ops_->linear_grad_weight(own_dy, own_x, own_dw, GradientUse::kSet);
          if (use == GradientUse::kAdd) ops_->linear_grad_weight(own_dy, own_x, own_dw, GradientUse::kAdd);
          EXPECT_TRUE(at::equal(dw.narrow(0, e * c.N, c.N), own_dw)) << "gradient of the weight";
          EXPECT_TRUE(at::equal(y.narrow(0, first, count), ops_->linear(own_x, own_w, dtype()))) << "product";
          EXPECT_TRUE(at::equal(dx.narrow(0, first, count), ops_->linear_grad_input(own_dy, own_w, at::kFloat)))
              << "gradient of the input";
          first += count;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::device
