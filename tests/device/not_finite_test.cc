// NaN and infinity are never swallowed: on every backend, a row that depends on one holds a number that is none, and
// rows that do not depend on it keep their bits. A model with a damaged weight once gave log-probs that were off by up
// to 7 nats and looked like any others: exp() took NaN for a very small number, so that a key whose score was NaN
// counted as one that is not there.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "tests/device/draw.h"
#include "tests/device/paged_case.h"

namespace tandem::device {
namespace {

using reference::Values;

constexpr uint64_t kNotFiniteSeed = 11;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
constexpr float kBad[] = {kNaN, kInf, -kInf};

class NotFiniteTest : public testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override {
    if (ops_ == nullptr) GTEST_SKIP() << why_missing(GetParam().name);
  }
  at::ScalarType dtype() const { return GetParam().dtype; }
  Tensor normal(at::IntArrayRef shape) { return draw_.normal(shape, dtype()); }

  TestDraw draw_{kNotFiniteSeed};
  std::unique_ptr<Ops> ops_ = make_backend(GetParam().name, GetParam().name == "aten" ? 1 : 2);
};

INSTANTIATE_TEST_SUITE_P(Backends, NotFiniteTest, testing::ValuesIn(in_both_dtypes(all_backends())),
                         [](const auto& info) {
                           return info.param.name + (info.param.dtype == at::kFloat ? "_float32" : "_bfloat16");
                         });

// Returns a copy with one element replaced.
Tensor with(const Tensor& x, int64_t element, float value) {
  Tensor damaged = x.clone();
  damaged.view(-1).narrow(0, element, 1).fill_(value);
  return damaged;
}

bool all_nan(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isnan(x); });
}
bool any_not_finite(const Values& values) {
  return std::any_of(values.begin(), values.end(), [](double x) { return !std::isfinite(x); });
}

// Returns one sequence, with all of its tokens as rows.
PagedCase one_sequence(int64_t T, int64_t H, int64_t G, int64_t K) {
  PagedCase c{.attention = {.H = H, .G = G, .K = K, .sequences = {{}}, .sequence_of_row = {}, .row_position = {}},
              .group_offsets = {0, static_cast<int32_t>(T)},
              .num_tokens = T};
  for (int64_t t = 0; t < T; ++t) {
    c.attention.sequences[0].push_back(static_cast<int32_t>(t));
    c.attention.sequence_of_row.push_back(0);
    c.attention.row_position.push_back(static_cast<int32_t>(t));
  }
  return c;
}

TEST_P(NotFiniteTest, AttentionSwallowsNoQueryKeyOrValue) {
  const int64_t T = 37, H = 4, G = 2, K = 32;
  const PagedCase c = one_sequence(T, H, G, K);
  const PagedCache cache = place(c, draw_, dtype(), /*share=*/false);
  const Tensor q = normal({T, H, K}), k = normal({T, G, K}), v = normal({T, G, K});
  struct Result {
    Tensor out, lse;
    Values out_of(int64_t row, int64_t head) const { return to_values(out.select(0, row).select(0, head)); }
    Values lse_of(int64_t row, int64_t head) const { return to_values(lse.select(0, row).select(0, head)); }
  };
  const auto attend = [&](const Tensor& q_, const Tensor& k_, const Tensor& v_) {
    ops_->kv_append(cache.kv_layer, k_, v_, cache.rows.kv_tokens, cache.rows.kv_slots);
    Result result;
    result.lse = at::empty({T, H}, at::kFloat);
    result.out = ops_->paged_attention(q_, cache.kv_layer, cache.rows, result.lse);
    return result;
  };
  const Result clean = attend(q, k, v);
  ASSERT_FALSE(any_not_finite(to_values(clean.out)));
  for (const float bad : kBad) {
    for (const int64_t token : {0, 1, 15, 16, 20, 36}) {
      for (const int64_t at : {0, 31}) {
        SCOPED_TRACE(fmt::format("{} at token {}, element {}; seed {}", bad, token, at, kNotFiniteSeed));
        const int64_t head = 2, kv_head = 1;  // head 2 reads KV head 1
        const Result of_q = attend(with(q, (token * H + head) * K + at, bad), k, v);
        const Result of_k = attend(q, with(k, (token * G + kv_head) * K + at, bad), v);
        const Result of_v = attend(q, k, with(v, (token * G + kv_head) * K + at, bad));
        for (int64_t row = 0; row < T; ++row) {
          for (int64_t h = 0; h < H; ++h) {
            SCOPED_TRACE(fmt::format("row {} head {}", row, h));
            const bool sees = row >= token && h / (H / G) == kv_head;
            if (row == token && h == head) {
              EXPECT_TRUE(all_nan(of_q.out_of(row, h)) && all_nan(of_q.lse_of(row, h))) << "q";
            } else {
              EXPECT_EQ(of_q.out_of(row, h), clean.out_of(row, h)) << "q";
            }
            if (sees) {
              EXPECT_TRUE(all_nan(of_k.out_of(row, h)) && all_nan(of_k.lse_of(row, h))) << "k";
              EXPECT_FALSE(std::isfinite(of_v.out_of(row, h)[static_cast<size_t>(at)])) << "v";
            } else {
              EXPECT_EQ(of_k.out_of(row, h), clean.out_of(row, h)) << "k";
              EXPECT_EQ(of_k.lse_of(row, h), clean.lse_of(row, h)) << "k";
            }
          }
        }
      }
    }
  }
}

TEST_P(NotFiniteTest, AttentionBackwardSwallowsNone) {
  const int64_t T = 20, H = 2, G = 1, K = 32;
  const PagedCase c = one_sequence(T, H, G, K);
  const PagedCache cache = place(c, draw_, dtype(), /*share=*/false);
  const Tensor q = with(normal({T, H, K}), 3 * H * K, kNaN), k = normal({T, G, K}), v = normal({T, G, K});
  ops_->kv_append(cache.kv_layer, k, v, cache.rows.kv_tokens, cache.rows.kv_slots);
  const Tensor lse = at::empty({T, H}, at::kFloat);
  const Tensor out = ops_->paged_attention(q, cache.kv_layer, cache.rows, lse);
  const Ops::AttentionGrad d = ops_->attention_backward(normal({T, H, K}), q, out, lse, cache.kv_layer, cache.rows);
  EXPECT_TRUE(all_nan(to_values(d.dq_THK.select(0, 3).select(0, 0))));
  EXPECT_TRUE(all_nan(to_values(d.dk_TGK.select(0, 0)))) << "of a key that the row sees";
  EXPECT_TRUE(all_nan(to_values(d.dv_TGK.select(0, 0)))) << "of a value that the row sees";
}

TEST_P(NotFiniteTest, LogprobAndEntropyOfARowWithOneAreNaN) {
  const int64_t R = 3;
  for (const int64_t V : {5, 16, 37, 200}) {
    const Tensor logits = draw_.normal({R, V}, at::kFloat), targets = to_tensor({1, 2, -1});
    struct Result {
      Tensor logp = at::empty({R}, at::kFloat), entropy = at::empty({R}, at::kFloat), lse = at::empty({R}, at::kFloat);
    };
    const auto score = [&](const Tensor& of, double temperature) {
      Result result;
      ops_->logprob(of.clone(), targets, temperature, result.logp, result.entropy, result.lse);
      return result;
    };
    for (const double temperature : {1.0, 0.7}) {
      const Result clean = score(logits, temperature);
      for (const float bad : kBad) {
        for (const int64_t at : {int64_t{0}, V / 2, V - 1}) {
          SCOPED_TRACE(fmt::format("{} at {} of {}; seed {}", bad, at, V, kNotFiniteSeed));
          const Result result = score(with(logits, V + at, bad), temperature);
          for (int64_t row = 0; row < R; ++row) {
            const auto of = [row](const Tensor& x) { return to_values(x)[static_cast<size_t>(row)]; };
            if (row == 1) {
              EXPECT_TRUE(std::isnan(of(result.logp))) << of(result.logp);
              EXPECT_TRUE(std::isnan(of(result.entropy))) << of(result.entropy);
              EXPECT_TRUE(std::isnan(of(result.lse))) << of(result.lse);
            } else {
              EXPECT_EQ(of(result.logp), of(clean.logp));
              EXPECT_EQ(of(result.entropy), of(clean.entropy));
              EXPECT_EQ(of(result.lse), of(clean.lse));
            }
          }
        }
      }
    }
  }
}

TEST_P(NotFiniteTest, RowsOfTheBlockSwallowNone) {
  const int64_t T = 3, E = 40, N = 37, H = 2, G = 1, K = 32;
  const Tensor x = normal({T, E}), w = normal({N, E}), norm = normal({E}), delta = normal({T, E});
  const Tensor square = normal({E, E});
  const Tensor gate_up = normal({T, 2 * E}), qkv = normal({T, (H + 2 * G) * K}), head_norm = normal({K});
  const Tensor positions = to_tensor({0, 5, 6});
  const Ops::QkvShape shape{.num_heads = H, .num_kv_heads = G, .head_dim = K, .rope_theta = 1e4, .eps = 1e-6};
  const auto row = [](const Tensor& y, int64_t t) { return to_values(y.select(0, t)); };
  const auto biased = [&](const Tensor& y, const Tensor& bias) {
    const Tensor sum = y.clone();
    ops_->add_bias(sum, bias);
    return sum;
  };
  const auto added_to = [&](const Tensor& y, const Tensor& weight, const Tensor& residual) {
    const Tensor sum = residual.clone();
    ops_->linear_add_to(y, weight, sum);
    return sum;
  };
  for (const float bad : kBad) {
    SCOPED_TRACE(fmt::format("{}; seed {}", bad, kNotFiniteSeed));
    const Tensor damaged = with(x, E + 7, bad);  // damages row 1
    for (const auto& [what, clean, y] :
         {std::tuple{"linear", ops_->linear(x, w, dtype()), ops_->linear(damaged, w, dtype())},
          std::tuple{"linear_add", ops_->linear_add(x, square, x), ops_->linear_add(damaged, square, x)},
          std::tuple{"linear_add_to", added_to(x, square, x), added_to(damaged, square, x)},
          std::tuple{"linear_add_to residual", added_to(x, square, x), added_to(x, square, damaged)},
          std::tuple{"linear_add residual", ops_->linear_add(x, square, x), ops_->linear_add(x, square, damaged)},
          std::tuple{"add", ops_->add(x, delta), ops_->add(damaged, delta)},
          std::tuple{"rms_norm", ops_->rms_norm(x, norm, 1e-6), ops_->rms_norm(damaged, norm, 1e-6)},
          std::tuple{"add_bias", biased(x, norm), biased(damaged, norm)},
          std::tuple{"rope q", ops_->rope(qkv, positions, shape).q_THK,
                     ops_->rope(with(qkv, (H + 2 * G) * K + 3, bad), positions, shape).q_THK},
          std::tuple{"rope v", ops_->rope(qkv, positions, shape).v_TGK,
                     ops_->rope(with(qkv, (2 * H + 3 * G) * K + 3, bad), positions, shape).v_TGK},
          std::tuple{"gate", ops_->silu_mul(gate_up), ops_->silu_mul(with(gate_up, 2 * E + 7, bad))},
          std::tuple{"gate of gelu", ops_->gelu_mul(gate_up), ops_->gelu_mul(with(gate_up, 2 * E + 7, bad))},
          std::tuple{"up", ops_->silu_mul(gate_up), ops_->silu_mul(with(gate_up, 2 * E + E + 7, bad))}}) {
      EXPECT_TRUE(any_not_finite(row(y, 1))) << what;
      EXPECT_EQ(row(y, 0), row(clean, 0)) << what;
      EXPECT_EQ(row(y, 2), row(clean, 2)) << what;
    }
    // A damaged weight shows in every row.
    const Ops::Qkv rotated =
        ops_->qk_norm_rope(qkv, with(head_norm, 3, bad), with(head_norm, 3, bad), positions, shape);
    const Ops::Qkv damaged_row =
        ops_->qk_norm_rope(with(qkv, (H + 2 * G) * K + 3, bad), head_norm, head_norm, positions, shape);
    EXPECT_TRUE(any_not_finite(row(damaged_row.q_THK, 1)));
    for (int64_t t = 0; t < T; ++t) {
      EXPECT_TRUE(any_not_finite(row(rotated.q_THK, t)));
      EXPECT_TRUE(any_not_finite(row(rotated.k_TGK, t)));
      EXPECT_TRUE(any_not_finite(row(ops_->linear(x, with(w, 11 * E + 3, bad), dtype()), t)));
      EXPECT_TRUE(any_not_finite(row(ops_->rms_norm(x, with(norm, 3, bad), 1e-6), t)));
      EXPECT_TRUE(any_not_finite(row(biased(x, with(norm, 3, bad)), t)));
    }
  }
}

}  // namespace
}  // namespace tandem::device
