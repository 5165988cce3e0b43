// Tests that a place's row has the bits of a row of linear() by its expert's weights, however many rows the expert has
// and whichever kernel multiplies them. The sums cancel, so that another order of their terms shows in nearly every
// output. They run at the widths of a real layer on a GPU, at small ones on the CPU.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "tests/device/draw.h"

namespace tandem::device {
namespace {

// Group sizes of the experts; on average they have the number of rows from which a GPU has a kernel for many.
constexpr int64_t kGroups[] = {500, 0, 1, 129, 7, 16, 1500, 64, 127, 65, 128};
constexpr int64_t kExperts = std::size(kGroups);

class ExpertProductBits : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (ops_ == nullptr) GTEST_SKIP() << why_missing(GetParam());
  }
  bool is_gpu() const { return is_module(GetParam()) && !is_pretended(*ops_); }
  // These are gate_up and down of an expert of Qwen3-30B-A3B; 96 is what eight ranks leave of an expert's 768.
  std::vector<Widths> widths() const {
    if (!is_gpu()) return {{48, 64}, {64, 40}};
    return {{1536, 2048}, {2048, 768}, {2048, 96}, {72, 104}};
  }
  // Returns [lines, depth], whose terms k and depth - 1 - k are equal, or opposite if `sign` is -1.
  Tensor cancelling(int64_t lines, int64_t depth, double sign) {
    const Tensor half =
        draw_.normal({lines, 1}, at::kFloat).mul(draw_.normal({1, depth / 2}, at::kFloat)).to(at::kBFloat16);
    return at::cat({half, half.flip({1}) * sign}, 1);
  }
  // A share of each group, rounded up. The CPU has a twentieth of them.
  std::vector<int64_t> groups(int64_t share) const {
    if (!is_gpu()) share *= 20;
    std::vector<int64_t> counts;
    for (const int64_t group : kGroups) counts.push_back((group + share - 1) / share);
    return counts;
  }
  // Every token has one expert; those of an expert are drawn. So place p has token tokens[p].
  Routing routing_of(const std::vector<int64_t>& counts) {
    const int64_t T = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const reference::Ids tokens = draw_.permutation(T);
    Routing routing = {.ids_TC = at::empty({T, 1}, at::kInt),
                       .weights_TC = at::full({T, 1}, 1.0F),
                       .offsets_X1 = at::zeros({std::ssize(counts) + 1}, at::kInt),
                       .places_TC = at::empty({T, 1}, at::kInt),
                       .sources_P = to_tensor(tokens)};
    auto* const offsets = routing.offsets_X1.mutable_data_ptr<int32_t>();
    int32_t place = 0;
    for (size_t e = 0; e < counts.size(); ++e) {
      for (int64_t i = 0; i < counts[e]; ++i, ++place) {
        const int32_t token = tokens[static_cast<size_t>(place)];
        routing.ids_TC.mutable_data_ptr<int32_t>()[token] = static_cast<int32_t>(e);
        routing.places_TC.mutable_data_ptr<int32_t>()[token] = place;
      }
      offsets[e + 1] = place;
    }
    return routing;
  }
  // Calls compare(e, first, count) for each expert that has places.
  template <typename Compare>
  static void for_each_group(const Routing& routing, Compare compare) {
    const auto* const offsets = routing.offsets_X1.const_data_ptr<int32_t>();
    for (int64_t e = 0; e < routing.num_experts(); ++e) {
      if (offsets[e + 1] > offsets[e]) compare(e, offsets[e], offsets[e + 1] - offsets[e]);
    }
  }
  TestDraw draw_{17};
  std::unique_ptr<Ops> ops_ = make_backend(GetParam(), 2);
};

INSTANTIATE_TEST_SUITE_P(Backends, ExpertProductBits, testing::ValuesIn(and_modules({"auto"})),
                         [](const auto& info) { return info.param; });

TEST_P(ExpertProductBits, RowsAreThoseOfLinearInGroupsOfEverySize) {
  for (const auto [N, K] : widths()) {
    const Tensor w_XNK = cancelling(kExperts * N, K, -1.0);
    for (const int64_t share : {1500, 64, 32, 16, 8, 1}) {
      const Routing routing = routing_of(groups(share));
      const Tensor x_TK = cancelling(routing.num_tokens(), K, 1.0), x_PK = x_TK.index_select(0, routing.sources_P);
      for (const at::ScalarType out : {at::kBFloat16, at::kFloat}) {
        const Tensor of_tokens = ops_->linear_of_experts(x_TK, RowsAre::kTokens, w_XNK, routing, out);
        const Tensor of_places = ops_->linear_of_experts(x_PK, RowsAre::kPlaces, w_XNK, routing, out);
        EXPECT_TRUE(same_bits(of_tokens, of_places)) << N << " x " << K << ": the rows of tokens and of places differ";
        for_each_group(routing, [&](int64_t e, int64_t first, int64_t count) {
          const Tensor want = ops_->linear(x_PK.narrow(0, first, count), w_XNK.narrow(0, e * N, N), out);
          EXPECT_TRUE(same_bits(of_places.narrow(0, first, count), want))
              << N << " x " << K << ", " << count << " rows of " << routing.num_places() << ", " << out;
        });
      }
    }
  }
}

// A single token, few and many have kernels of their own. Each product of the MLP is compared with linear(), row by
// row.
TEST_P(ExpertProductBits, TheMlpInOneHasTheBitsOfItsOperations) {
  constexpr int64_t X = 16, C = 4, E = 256, F = 128;
  // These sums do not cancel: what the activation is made of has to be rounded, and shows in what it becomes.
  const Tensor gate_up = draw_.normal({X * 2 * F, E}, at::kBFloat16).mul_(0.1);
  const Tensor down = draw_.normal({X * E, F}, at::kBFloat16);
  for (const int64_t T : {1, 2, 9, 100}) {
    const Tensor x_TE = draw_.normal({T, E}, at::kBFloat16), residual_TE = draw_.normal({T, E}, at::kBFloat16);
    const Routing routing = ops_->route(draw_.normal({T, X}, at::kFloat), {.chosen = C, .normalises = true});
    for (const at::ScalarType out : {at::kBFloat16, at::kFloat}) {
      const Tensor residual = out == at::kFloat ? Tensor() : residual_TE;
      const Ops::ExpertsMlp mlp = ops_->mlp_of_experts(x_TE, gate_up, down, routing, residual, out, true);
      const Tensor a_PF = ops_->silu_mul(mlp.gate_up_P2F);
      const Tensor y_PE = ops_->linear_of_experts(a_PF, RowsAre::kPlaces, down, routing, out);
      for_each_group(routing, [&](int64_t e, int64_t first, int64_t count) {
        for (int64_t p = first; p < first + count; ++p) {
          const int64_t token = routing.sources_P.const_data_ptr<int32_t>()[p] / C;
          const Tensor gate_up_row =
              ops_->linear(x_TE.narrow(0, token, 1), gate_up.narrow(0, e * 2 * F, 2 * F), at::kBFloat16);
          EXPECT_TRUE(same_bits(mlp.gate_up_P2F.narrow(0, p, 1), gate_up_row)) << "place " << p << " of " << T;
          const Tensor y_row = ops_->linear(a_PF.narrow(0, p, 1), down.narrow(0, e * E, E), out);
          EXPECT_TRUE(same_bits(y_PE.narrow(0, p, 1), y_row)) << "place " << p << " of " << T << ", " << out;
        }
      });
      const Tensor sum_TE = ops_->sum_of_experts(y_PE, routing.weights_TC, routing, residual, out);
      EXPECT_TRUE(same_bits(mlp.sum_TE, sum_TE)) << T << " tokens, " << out;
      const Ops::ExpertsMlp alone = ops_->mlp_of_experts(x_TE, gate_up, down, routing, residual, out, false);
      EXPECT_TRUE(same_bits(alone.sum_TE, sum_TE)) << T << " tokens, " << out << ", without gate and up";
      EXPECT_FALSE(alone.gate_up_P2F.defined());
    }
  }
}

TEST_P(ExpertProductBits, InputGradientsAreThoseOfLinearInGroupsOfEverySize) {
  for (const auto [N, K] : widths()) {
    Tensor w_XNK = at::empty({0, K}, at::kBFloat16);
    for (int64_t e = 0; e < kExperts; ++e) w_XNK = at::cat({w_XNK, cancelling(K, N, -1.0).t()});
    for (const int64_t share : {64, 1}) {
      const Routing routing = routing_of(groups(share));
      const Tensor dy_TN = cancelling(routing.num_tokens(), N, 1.0), dy_PN = dy_TN.index_select(0, routing.sources_P);
      for (const at::ScalarType out : {at::kBFloat16, at::kFloat}) {
        const Tensor dx_PK = ops_->linear_of_experts_grad_input(dy_TN, RowsAre::kTokens, w_XNK, routing, out);
        for_each_group(routing, [&](int64_t e, int64_t first, int64_t count) {
          const Tensor want = ops_->linear_grad_input(dy_PN.narrow(0, first, count), w_XNK.narrow(0, e * N, N), out);
          EXPECT_TRUE(same_bits(dx_PK.narrow(0, first, count), want))
              << N << " x " << K << ", " << count << " rows of " << routing.num_places() << ", " << out;
        });
      }
    }
  }
}

// Terms are the expert's places in their order, for as many as it has; a pattern in the tokens makes the sums cancel.
TEST_P(ExpertProductBits, WeightGradientsAreThoseOfLinearInGroupsOfEverySize) {
  for (const auto [N, K] : widths()) {
    for (const int64_t share : {64, 1}) {
      const Routing routing = routing_of(groups(share));
      const int64_t T = routing.num_tokens() / 2 * 2, rest = routing.num_tokens() - T;
      const auto tokens_of = [&](int64_t width, double sign) {
        const Tensor columns = cancelling(width, T, sign).t();
        return rest == 0 ? columns.contiguous() : at::cat({columns, columns.narrow(0, 0, rest)});
      };
      const Tensor dy_TN = tokens_of(N, 1.0), x_TK = tokens_of(K, -1.0);
      const Tensor dy_PN = dy_TN.index_select(0, routing.sources_P), x_PK = x_TK.index_select(0, routing.sources_P);
      for (const GradientUse use : {GradientUse::kSet, GradientUse::kAdd}) {
        const Tensor got = at::full({kExperts * N, K}, 0.125F), other = at::full({kExperts * N, K}, 0.125F);
        const Tensor want = got.clone();
        ops_->linear_of_experts_grad_weight(dy_TN, RowsAre::kTokens, x_PK, RowsAre::kPlaces, got, routing, use);
        ops_->linear_of_experts_grad_weight(dy_PN, RowsAre::kPlaces, x_TK, RowsAre::kTokens, other, routing, use);
        EXPECT_TRUE(same_bits(got, other)) << N << " x " << K << ": the rows of tokens and of places differ";
        for_each_group(routing, [&](int64_t e, int64_t first, int64_t count) {
          const Tensor want_NK = want.narrow(0, e * N, N);
          ops_->linear_grad_weight(dy_PN.narrow(0, first, count), x_PK.narrow(0, first, count), want_NK, use);
          EXPECT_TRUE(same_bits(got.narrow(0, e * N, N), want_NK))
              << N << " x " << K << ", " << count << " rows of " << routing.num_places();
        });
      }
    }
  }
}

// The comparison of rows notices a kernel that splits a sum in two.
TEST_P(ExpertProductBits, ASplitSumHasOtherBits) {
  size_t num_seen = 0;
  for (const auto [N, K] : widths()) {
    const Tensor x_TK = cancelling(32, K, 1.0), w_NK = cancelling(N, K, -1.0);
    const auto part = [&](int64_t first, int64_t terms) {
      return ops_->linear(x_TK.narrow(1, first, terms).contiguous(), w_NK.narrow(1, first, terms).contiguous(),
                          at::kFloat);
    };
    const int64_t cut = K / 4;
    num_seen += same_bits(part(0, cut) + part(cut, K - cut), ops_->linear(x_TK, w_NK, at::kFloat)) ? 0 : 1;
  }
  // On a CPU with AMX 40 terms cancel to exactly zero, however they are split.
  EXPECT_GE(num_seen, is_gpu() ? widths().size() : 1);
}

// Enough tokens for several tiles of the order of places, the last of which is not whole.
TEST_P(ExpertProductBits, ManyTokensAreOrderedByExpertThenToken) {
  for (const auto& [T, X, C] :
       {std::tuple{1300, 128, 8}, {513, 512, 16}, {1024, 40, 3}, {512, 512, 10}, {40, 600, 3}}) {
    const Tensor logits = draw_.normal({T, X}, at::kFloat);
    const Routing routing = ops_->route(logits, {.chosen = C, .normalises = true});
    const auto* const ids = routing.ids_TC.const_data_ptr<int32_t>();
    const auto* const places = routing.places_TC.const_data_ptr<int32_t>();
    const auto* const sources = routing.sources_P.const_data_ptr<int32_t>();
    const auto* const offsets = routing.offsets_X1.const_data_ptr<int32_t>();
    int32_t place = 0;
    for (int32_t e = 0; e < X; ++e) {
      ASSERT_EQ(offsets[e], place) << "expert " << e;
      for (int32_t source = 0; source < T * C; ++source) {
        if (ids[source] != e) continue;
        ASSERT_EQ(sources[place], source);
        ASSERT_EQ(places[source], place++);
      }
    }
    ASSERT_EQ(offsets[X], T * C);
  }
}

}  // namespace
}  // namespace tandem::device
