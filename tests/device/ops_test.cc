// Tests that every backend gives, for every operation and both dtypes, the result of the float64 reference for the same
// inputs, within a float32 tolerance and one rounding of the result. Each check prints how much of its tolerance was
// used.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/device/draw.h"
#include "tests/device/paged_case.h"
#include "tests/device/reference.h"

namespace tandem::device {
namespace {

using reference::Ids;
using reference::Values;

constexpr uint64_t kOpsSeed = 7;

struct HeadDims {
  int64_t H, G, K;
};

// Two groups, in whose sequences each token sees itself and the tokens of a window before it.
struct WindowCase {
  int64_t window;
  HeadDims heads;
  const std::vector<int64_t>& prompts = kShortPrompts;
};

class OpsTest : public testing::TestWithParam<BackendCase> {
 protected:
  // This is the error of sums of a hundred products of order one, in float32, in any order.
  static constexpr double kTolerance = 1e-5;

  void SetUp() override {
    if (ops_ == nullptr) GTEST_SKIP() << why_missing(GetParam().name);
  }

  at::ScalarType dtype() const { return GetParam().dtype; }

  void expect_windows_are_seen_alone(const std::vector<WindowCase>& cases);

  // Kernels of a GPU round weights of values to bfloat16 before they multiply, where they serve that head size.
  double attention_tolerance(int64_t head_dim) const {
    const bool rounds_inside = GetParam().name == "cuda" && dtype() == at::kBFloat16 && head_dim % 8 == 0;
    return rounds_inside ? 0x1.0p-7 : kTolerance;
  }

  // Expects that |got - want| is at most `tolerance` times the largest |want| (of numbers that went through float32
  // arithmetic), and half a unit in the last place where the result is bfloat16.
  void expect_close(const std::string& what, const Tensor& got, const Values& want, double tolerance = kTolerance) {
    const Values values = to_values(got);
    ASSERT_EQ(values.size(), want.size()) << what;
    double largest = 1e-3, used = 0.0;
    for (const double value : want) largest = std::max(largest, std::abs(value));
    size_t worst = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const double rounding = got.scalar_type() == at::kBFloat16 ? std::abs(want[i]) * 0x1.0p-8 : 0.0;
      double share = std::abs(values[i] - want[i]) / (tolerance * largest + rounding);
      if (std::isnan(share)) share = INFINITY;
      if (share > used) {
        used = share;
        worst = i;
      }
    }
    fmt::print("[    used  ] {:<34} {:6.2f} % of {:.0e} x {:.3g}\n", what, 100.0 * used, tolerance, largest);
    EXPECT_LE(used, 1.0) << what << " of " << ops_->name() << ", element " << worst << ": " << values[worst]
                         << ", expected " << want[worst] << "; seed " << kOpsSeed;
  }

  Tensor normal(at::IntArrayRef shape, double mean = 0.0, double scale = 1.0) {
    return draw_.normal(shape, dtype(), mean, scale);
  }

  TestDraw draw_{kOpsSeed};
  // ATen's thread pool costs more than it gives on tensors of this size.
  std::unique_ptr<Ops> ops_ = make_backend(GetParam().name, GetParam().name == "aten" ? 1 : 2);
};

INSTANTIATE_TEST_SUITE_P(Backends, OpsTest, testing::ValuesIn(in_both_dtypes(all_backends())), [](const auto& info) {
  return info.param.name + (info.param.dtype == at::kFloat ? "_float32" : "_bfloat16");
});

struct LinearDims {
  int64_t T, K, N;
};
// The sizes are one row and many, whole and ragged vectors and tiles.
constexpr LinearDims kLinearDims[] = {{1, 64, 48}, {5, 80, 37}, {33, 96, 130}, {70, 129, 17}, {2, 7, 3}};

TEST_P(OpsTest, LinearMultipliesByTheTransposedWeight) {
  for (const auto [T, K, N] : kLinearDims) {
    const Tensor x = normal({T, K}), w = normal({N, K});
    const Values want = reference::linear(to_values(x), to_values(w), T, K, N);
    for (const at::ScalarType out : {at::kFloat, dtype()}) {
      const Tensor y = ops_->linear(x, w, out);
      EXPECT_EQ(y.scalar_type(), out);
      expect_close(fmt::format("linear {}x{}x{}", T, K, N), y, want);
    }
  }
}

TEST_P(OpsTest, LinearAddToAddsTheProductToAWindowOfColumns) {
  const double tolerance = dtype() == at::kBFloat16 ? 0x1.0p-8 : kTolerance;
  for (const auto [T, K, N] : kLinearDims) {
    const Tensor x = normal({T, K}), w = normal({N, K}), y = normal({T, N + 24});
    const Tensor before = y.clone(), window = y.narrow(1, 8, N);
    Values want = reference::linear(to_values(x), to_values(w), T, K, N);
    const Values old = to_values(window.contiguous());
    for (size_t i = 0; i < want.size(); ++i) want[i] += old[i];
    ops_->linear_add_to(x, w, window);
    expect_close(fmt::format("linear_add_to {}x{}x{}", T, K, N), window.contiguous(), want, tolerance);
    EXPECT_TRUE(y.narrow(1, 0, 8).equal(before.narrow(1, 0, 8)) &&
                y.narrow(1, N + 8, 16).equal(before.narrow(1, N + 8, 16)))
        << "columns beside the window";
  }
}

TEST_P(OpsTest, LinearAddAddsTheProductToTheResidual) {
  // In bfloat16 the product may be rounded once before it is added.
  const double tolerance = dtype() == at::kBFloat16 ? 0x1.0p-8 : kTolerance;
  for (const auto [T, K, N] : kLinearDims) {
    const Tensor x = normal({T, K}), w = normal({N, K}), residual = normal({T, N});
    const Values before = to_values(residual);
    Values want = reference::linear(to_values(x), to_values(w), T, K, N);
    for (size_t i = 0; i < want.size(); ++i) want[i] += before[i];
    const Tensor y = ops_->linear_add(x, w, residual);
    EXPECT_EQ(y.scalar_type(), dtype());
    expect_close(fmt::format("linear_add {}x{}x{}", T, K, N), y, want, tolerance);
    EXPECT_EQ(to_values(residual), before) << "the residual is an argument";
  }
}

TEST_P(OpsTest, LinearGradientsAreThoseOfLinear) {
  for (const auto [T, K, N] : kLinearDims) {
    // The head's dy is float32 whatever the model's dtype.
    for (const at::ScalarType dy_dtype : {dtype(), at::kFloat}) {
      const Tensor x = normal({T, K}), w = normal({N, K}), dy = draw_.normal({T, N}, dy_dtype);
      const Tensor dx = ops_->linear_grad_input(dy, w, dtype());
      EXPECT_EQ(dx.scalar_type(), dtype());
      expect_close("linear_grad_input", dx, reference::linear_grad_input(to_values(dy), to_values(w), T, K, N));

      const Tensor dw = draw_.normal({N, K}, at::kFloat);
      Values want = to_values(dw);
      const Values added = reference::linear_grad_weight(to_values(dy), to_values(x), T, K, N);
      for (size_t i = 0; i < want.size(); ++i) want[i] += added[i];
      ops_->linear_grad_weight(dy, x, dw, GradientUse::kAdd);
      expect_close("linear_grad_weight", dw, want);
      dw.fill_(std::numeric_limits<float>::quiet_NaN());
      ops_->linear_grad_weight(dy, x, dw, GradientUse::kSet);
      expect_close("linear_grad_weight, the first", dw, added);
      if (GetParam().name == "aten" || is_module(GetParam().name)) continue;
      const Tensor from_zero = at::zeros({N, K});
      ops_->linear_grad_weight(dy, x, from_zero, GradientUse::kAdd);
      EXPECT_EQ(to_values(dw), to_values(from_zero)) << "on the CPU the first is bit for bit what is added to zero";
    }
  }
}

TEST_P(OpsTest, EmbeddingPicksRowsAndItsGradientAddsThem) {
  const int64_t V = 11, E = 37;
  const Tensor table = normal({V, E}), dtable = draw_.normal({V, E}, at::kFloat);
  const Ids ids = {3, 0, 10, 3, 3, 7};
  const Tensor rows = ops_->embedding(table, to_tensor(ids)), dy = normal({6, E});
  Values want, want_grad = to_values(dtable);
  for (size_t t = 0; t < ids.size(); ++t) {
    const Values row = to_values(table.select(0, ids[t])), drow = to_values(dy.select(0, static_cast<int64_t>(t)));
    want.insert(want.end(), row.begin(), row.end());
    for (size_t e = 0; e < drow.size(); ++e) want_grad[static_cast<size_t>(ids[t] * E) + e] += drow[e];
  }
  EXPECT_EQ(rows.scalar_type(), dtype());
  EXPECT_EQ(to_values(rows), want);
  ops_->embedding_backward(dy, to_tensor(ids), dtable);
  expect_close("embedding_backward", dtable, want_grad, 1e-6);
}

TEST_P(OpsTest, AddRoundsOnce) {
  const Tensor a = normal({5, 37}), b = normal({5, 37});
  const Values va = to_values(a), vb = to_values(b);
  Values want;
  for (size_t i = 0; i < va.size(); ++i) want.push_back(va[i] + vb[i]);
  const Tensor sum = ops_->add(a, b);
  EXPECT_EQ(sum.scalar_type(), dtype());
  expect_close("add", sum, want, 1e-7);
}

TEST_P(OpsTest, RmsNormAndItsGradients) {
  for (const int64_t E : {64, 80, 37}) {
    const Tensor x = normal({9, E}, 0.1, 2.0), w = normal({E}, 1.0, 0.25), dy = normal({9, E});
    const Tensor y = ops_->rms_norm(x, w, 1e-6);
    EXPECT_EQ(y.scalar_type(), dtype());
    expect_close("rms_norm", y, reference::rms_norm(to_values(x), to_values(w), 1e-6));
    // In rows of nearly zero, eps counts.
    const Tensor small = normal({3, E}, 0.0, 1e-3);
    expect_close("rms_norm, small", ops_->rms_norm(small, w, 1e-6),
                 reference::rms_norm(to_values(small), to_values(w), 1e-6));

    const Tensor dw = draw_.normal({E}, at::kFloat);
    reference::NormGrad want = reference::rms_norm_backward(to_values(dy), to_values(x), to_values(w), 1e-6);
    const Values before = to_values(dw);
    for (size_t i = 0; i < before.size(); ++i) want.dw[i] += before[i];
    expect_close("rms_norm_backward dx", ops_->rms_norm_backward(dy, x, w, 1e-6, dw), want.dx);
    expect_close("rms_norm_backward dw", dw, want.dw);
    EXPECT_TRUE(ops_->rms_norm_backward(dy, x, w, 1e-6, Tensor()).equal(ops_->rms_norm_backward(dy, x, w, 1e-6, dw)))
        << "a gradient of the weight that is not wanted";
  }
}

// If a batch has fewer rows than there are tensor ranks, some of those that share them have none.
TEST_P(OpsTest, NormsAndSumsOfNoRowsAreNothing) {
  for (const int64_t E : {64, 37}) {
    const Tensor none = normal({0, E}), w = normal({E}), dw = draw_.normal({E}, at::kFloat), sum = normal({0, E});
    const Tensor before = dw.clone(), part = draw_.normal({0, E}, at::kFloat);
    EXPECT_EQ(ops_->rms_norm(none, w, 1e-6).sizes(), none.sizes());
    EXPECT_EQ(ops_->rms_norm_backward(none, none, w, 1e-6, dw).sizes(), none.sizes());
    EXPECT_TRUE(dw.equal(before)) << "nothing is added";
    EXPECT_EQ(ops_->add(none, none).sizes(), none.sizes());
    ops_->sum_parts({part, part}, none, sum);
    ops_->sum_parts({part, part}, Tensor(), sum);
  }
}

TEST_P(OpsTest, QkNormRopeAndItsGradients) {
  for (const int64_t K : {32, 80, 128, 256}) {
    const reference::QkvDims d{.H = 4, .G = 2, .K = K, .rope_theta = 1e6, .eps = 1e-6};
    const Ops::QkvShape shape{d.H, d.G, d.K, d.rope_theta, d.eps};
    const Ids positions = {0, 1, 2, 40, 41, 99, 0};
    const int64_t T = static_cast<int64_t>(positions.size()), N = (d.H + 2 * d.G) * K;
    const Tensor qkv = normal({T, N}), q_norm = normal({K}, 1.0, 0.25), k_norm = normal({K}, 1.0, 0.25);
    const Values x = to_values(qkv), qw = to_values(q_norm), kw = to_values(k_norm);

    const Ops::Qkv got = ops_->qk_norm_rope(qkv, q_norm, k_norm, to_tensor(positions), shape);
    const reference::Qkv want = reference::qk_norm_rope(x, qw, kw, positions, d);
    EXPECT_EQ(got.q_THK.sizes(), at::IntArrayRef({T, d.H, K}));
    EXPECT_EQ(got.k_TGK.sizes(), at::IntArrayRef({T, d.G, K}));
    EXPECT_EQ(got.v_TGK.sizes(), at::IntArrayRef({T, d.G, K}));
    expect_close("qk_norm_rope q", got.q_THK, want.q, 2e-5);
    expect_close("qk_norm_rope k", got.k_TGK, want.k, 2e-5);
    EXPECT_EQ(to_values(got.v_TGK), want.v);

    const Tensor dq = normal({T, d.H, K}), dk = normal({T, d.G, K}), dv = normal({T, d.G, K});
    const Tensor dq_norm = at::zeros({K}), dk_norm = at::zeros({K});
    const Tensor dqkv =
        ops_->qk_norm_rope_backward(dq, dk, dv, qkv, q_norm, k_norm, to_tensor(positions), shape, dq_norm, dk_norm);
    const reference::QkvGrad grad =
        reference::qk_norm_rope_backward({to_values(dq), to_values(dk), to_values(dv)}, x, qw, kw, positions, d);
    EXPECT_EQ(dqkv.sizes(), qkv.sizes());
    expect_close("qk_norm_rope_backward dqkv", dqkv, grad.dqkv, 2e-5);
    expect_close("qk_norm_rope_backward dq_norm", dq_norm, grad.dq_norm, 2e-5);
    expect_close("qk_norm_rope_backward dk_norm", dk_norm, grad.dk_norm, 2e-5);
    EXPECT_TRUE(dqkv.equal(
        ops_->qk_norm_rope_backward(dq, dk, dv, qkv, q_norm, k_norm, to_tensor(positions), shape, Tensor(), Tensor())))
        << "gradients of the norms that are not wanted";
  }
}

TEST_P(OpsTest, RopeAndItsGradient) {
  for (const int64_t K : {32, 80, 128, 256}) {
    for (const bool is_scaled : {false, true}) {
      reference::QkvDims d{.H = 4, .G = 2, .K = K, .rope_theta = 5e5, .eps = 0.0};
      // The factors are like Llama's: short waves keep their frequency, long ones turn more slowly.
      for (int64_t i = 0; is_scaled && i < K / 2; ++i) d.rope_factors.push_back(i < K / 8 ? 1.0F : 2.0F / (2 + i));
      const Ops::QkvShape shape{d.H, d.G, d.K, d.rope_theta, d.eps, d.rope_factors};
      const Ids positions = {0, 1, 2, 40, 41, 99, 0};
      const int64_t T = static_cast<int64_t>(positions.size());
      const Tensor qkv = normal({T, (d.H + 2 * d.G) * K});

      const Ops::Qkv got = ops_->rope(qkv, to_tensor(positions), shape);
      const reference::Qkv want = reference::rope(to_values(qkv), positions, d);
      EXPECT_EQ(got.q_THK.sizes(), at::IntArrayRef({T, d.H, K}));
      EXPECT_EQ(got.k_TGK.sizes(), at::IntArrayRef({T, d.G, K}));
      EXPECT_EQ(got.v_TGK.sizes(), at::IntArrayRef({T, d.G, K}));
      expect_close("rope q", got.q_THK, want.q, 2e-5);
      expect_close("rope k", got.k_TGK, want.k, 2e-5);
      EXPECT_EQ(to_values(got.v_TGK), want.v);

      const Tensor dq = normal({T, d.H, K}), dk = normal({T, d.G, K}), dv = normal({T, d.G, K});
      const Tensor dqkv = ops_->rope_backward(dq, dk, dv, to_tensor(positions), shape);
      EXPECT_EQ(dqkv.sizes(), qkv.sizes());
      expect_close("rope_backward", dqkv,
                   reference::rope_backward({to_values(dq), to_values(dk), to_values(dv)}, positions, d), 2e-5);
    }
  }
}

TEST_P(OpsTest, AddBiasAndItsGradient) {
  for (const auto& [T, N] : {std::pair<int64_t, int64_t>{1, 48}, {9, 37}, {200, 130}}) {
    const Tensor y = normal({T, N}), bias = normal({N}, 0.5, 2.0), dy = normal({T, N});
    const Values want = reference::add_bias(to_values(y), to_values(bias));
    ops_->add_bias(y, bias);
    expect_close("add_bias", y, want);

    const Tensor dbias = draw_.normal({N}, at::kFloat);
    Values want_grad = reference::add_bias_backward(to_values(dy), N);
    const Values before = to_values(dbias);
    for (size_t i = 0; i < before.size(); ++i) want_grad[i] += before[i];
    ops_->add_bias_backward(dy, dbias);
    expect_close("add_bias_backward", dbias, want_grad);
  }
}

TEST_P(OpsTest, SiluMulAndItsGradient) {
  for (const int64_t F : {160, 37}) {
    const Tensor gate_up = normal({9, 2 * F}, 0.0, 4.0), dy = normal({9, F});
    const Tensor activated = ops_->silu_mul(gate_up);
    expect_close("silu_mul", activated, reference::silu_mul(to_values(gate_up), F));
    const Values want = reference::silu_mul_backward(to_values(dy), to_values(gate_up), F);
    expect_close("silu_mul_backward", ops_->silu_mul_backward(dy, gate_up), want);
    EXPECT_TRUE(at::equal(dy, activated)) << "its backward leaves it in the place of its gradient";
  }
  // Far from zero the sigmoid saturates: no overflow, no NaN.
  const Tensor far = normal({1, 2}, 0.0, 0.0);
  for (const float gate : {-200.0F, 200.0F}) {
    far.fill_(gate);
    expect_close("silu_mul, far", ops_->silu_mul(far), reference::silu_mul(to_values(far), 1));
    expect_close("silu_mul_backward, far", ops_->silu_mul_backward(far.narrow(1, 0, 1).contiguous(), far),
                 reference::silu_mul_backward(to_values(far.narrow(1, 0, 1)), to_values(far), 1));
  }
}

TEST_P(OpsTest, GeluMulAndItsGradient) {
  for (const int64_t F : {160, 37}) {
    const Tensor gate_up = normal({9, 2 * F}, 0.0, 2.0), dy = normal({9, F});
    const Tensor activated = ops_->gelu_mul(gate_up);
    expect_close("gelu_mul", activated, reference::gelu_mul(to_values(gate_up), F));
    const Values want = reference::gelu_mul_backward(to_values(dy), to_values(gate_up), F);
    expect_close("gelu_mul_backward", ops_->gelu_mul_backward(dy, gate_up), want);
    EXPECT_TRUE(at::equal(dy, activated)) << "its backward leaves it in the place of its gradient";
  }
  const Tensor far = normal({1, 2}, 0.0, 0.0);
  for (const float gate : {-200.0F, 200.0F}) {
    far.fill_(gate);
    expect_close("gelu_mul, far", ops_->gelu_mul(far), reference::gelu_mul(to_values(far), 1));
    expect_close("gelu_mul_backward, far", ops_->gelu_mul_backward(far.narrow(1, 0, 1).contiguous(), far),
                 reference::gelu_mul_backward(to_values(far.narrow(1, 0, 1)), to_values(far), 1));
  }
}

TEST_P(OpsTest, NormsAddTheirOffsetToTheWeight) {
  const auto shifted = [](Values values) {
    for (double& value : values) value += 1.0;
    return values;
  };
  for (const int64_t E : {64, 37}) {
    const Tensor x = normal({9, E}, 0.1, 2.0), w = normal({E}, 0.0, 0.25), dy = normal({9, E});
    const Norm norm(1e-6, 1.0);
    expect_close("rms_norm", ops_->rms_norm(x, w, norm),
                 reference::rms_norm(to_values(x), shifted(to_values(w)), 1e-6));
    const Tensor dw = at::zeros({E}, at::kFloat);
    const reference::NormGrad want =
        reference::rms_norm_backward(to_values(dy), to_values(x), shifted(to_values(w)), 1e-6);
    expect_close("rms_norm_backward dx", ops_->rms_norm_backward(dy, x, w, norm, dw), want.dx);
    expect_close("rms_norm_backward dw", dw, want.dw);
  }
  const int64_t T = 7, K = 32;
  const reference::QkvDims d{.H = 4, .G = 2, .K = K, .rope_theta = 1e4, .eps = 1e-6};
  Ops::QkvShape shape{d.H, d.G, d.K, d.rope_theta, d.eps};
  shape.norm_offset = 1.0;
  const Tensor qkv = normal({T, (d.H + 2 * d.G) * K}), q_norm = normal({K}, 0.0, 0.25), k_norm = normal({K}, 0.0, 0.25);
  const Ids ids = draw_.ids(T, 0, 500);
  const Tensor positions = to_tensor(ids);
  const Values vq = shifted(to_values(q_norm)), vk = shifted(to_values(k_norm));
  const Ops::Qkv got = ops_->qk_norm_rope(qkv, q_norm, k_norm, positions, shape);
  const reference::Qkv want = reference::qk_norm_rope(to_values(qkv), vq, vk, ids, d);
  expect_close("qk_norm_rope q", got.q_THK, want.q, 1e-4);
  expect_close("qk_norm_rope k", got.k_TGK, want.k, 1e-4);
  const Tensor dq = normal({T, d.H, K}), dk = normal({T, d.G, K}), dv = normal({T, d.G, K});
  const Tensor dq_norm = at::zeros({K}, at::kFloat), dk_norm = at::zeros({K}, at::kFloat);
  const Tensor dqkv = ops_->qk_norm_rope_backward(dq, dk, dv, qkv, q_norm, k_norm, positions, shape, dq_norm, dk_norm);
  const reference::QkvGrad grad =
      reference::qk_norm_rope_backward({to_values(dq), to_values(dk), to_values(dv)}, to_values(qkv), vq, vk, ids, d);
  expect_close("qk_norm_rope_backward", dqkv, grad.dqkv, 1e-4);
  expect_close("qk_norm_rope_backward dq_norm", dq_norm, grad.dq_norm, 1e-4);
  expect_close("qk_norm_rope_backward dk_norm", dk_norm, grad.dk_norm, 1e-4);
}

void OpsTest::expect_windows_are_seen_alone(const std::vector<WindowCase>& cases) {
  for (const auto& [window, heads, prompts] : cases) {
    const auto [H, G, K] = heads;
    SCOPED_TRACE(fmt::format("window {}, {}/{}x{}", window, H, G, K));
    PagedCase c = draw_groups(draw_, 2, H, G, K, prompts);
    c.attention.window = window;
    PagedCache cache = place(c, draw_, dtype(), /*share=*/true);
    cache.rows.window = window;
    const int64_t T = c.num_tokens;
    const Tensor q = normal({T, H, K}), k = normal({T, G, K}), v = normal({T, G, K}), dout = normal({T, H, K});
    ops_->kv_append(cache.kv_layer, k, v, cache.rows.kv_tokens, cache.rows.kv_slots);
    const Tensor lse = at::empty({T, H}, at::kFloat);
    const Tensor out = ops_->paged_attention(q, cache.kv_layer, cache.rows, lse);
    const reference::AttentionResult want = reference::attention(c.attention, to_values(q), to_values(k), to_values(v));
    expect_close("paged_attention", out, want.out, attention_tolerance(K));
    expect_close("paged_attention lse", lse, want.lse, attention_tolerance(K));
    const Ops::AttentionGrad got = ops_->attention_backward(dout, q, out, lse, cache.kv_layer, cache.rows);
    const reference::AttentionGrad grad = reference::attention_backward(c.attention, to_values(dout), to_values(out),
                                                                        to_values(q), to_values(k), to_values(v));
    expect_close("attention_backward dv", got.dv_TGK, grad.dv, attention_tolerance(K));
    if (window == 1) {
      // A softmax of one key has no gradient, and 0 no scale to compare with. What is left is the rounding of `out`.
      const double most = is_module(GetParam().name) && dtype() == at::kBFloat16 ? 0.1 : kTolerance;
      EXPECT_LT(got.dq_THK.abs().max().item<double>(), most);
      EXPECT_LT(got.dk_TGK.abs().max().item<double>(), most);
      continue;
    }
    expect_close("attention_backward dq", got.dq_THK, grad.dq, attention_tolerance(K));
    expect_close("attention_backward dk", got.dk_TGK, grad.dk, attention_tolerance(K));
  }
}

TEST_P(OpsTest, AttentionSeesTheKeysOfItsWindowAlone) {
  std::vector<WindowCase> cases;
  for (const int64_t window : {1, 2, 5, 16, 21}) cases.push_back({window, {4, 2, 48}});
  cases.push_back({300, {4, 2, 48}, kLongPrompts});
  expect_windows_are_seen_alone(cases);
}

// Windows within a tile of keys of a GPU's kernels (64 to 256 of them), as long as one, and across several. On it many
// rows of long prompts have a kernel of their own.
TEST_P(OpsTest, TheGradientOfAttentionOverHundredsOfKeysSeesItsWindowAlone) {
  if (!is_module(GetParam().name)) GTEST_SKIP() << "the CPU has the same kernels for any length";
  std::vector<WindowCase> cases;
  for (const HeadDims heads : {HeadDims{4, 2, 64}, {8, 1, 128}, {4, 1, 256}}) {
    for (const int64_t window : {1, 17, 64, 100, 128, 256, 300}) cases.push_back({window, heads, kLongPrompts});
  }
  expect_windows_are_seen_alone(cases);
}

// Keys and values before the windows of all rows of a call may be NaN, and their blocks any: a cache may have dropped
// them. Few rows, and as many as have a kernel of their own on a GPU.
TEST_P(OpsTest, WhatLiesBeforeAllWindowsChangesNothing) {
  const int64_t T = 700;
  std::vector<HeadDims> heads = {{4, 2, 64}};
  if (!is_pretended(*ops_)) heads.insert(heads.end(), {{8, 1, 128}, {2, 1, 256}});
  for (const auto [H, G, K] : heads) {
    PagedCase c{.attention = {.H = H, .G = G, .K = K, .sequences = {{}}, .sequence_of_row = {}, .row_position = {}},
                .group_offsets = {0, static_cast<int32_t>(T)},
                .num_tokens = T};
    for (int32_t t = 0; t < T; ++t) {
      c.attention.sequences[0].push_back(t);
      c.attention.sequence_of_row.push_back(0);
      c.attention.row_position.push_back(t);
    }
    const PagedCache cache = place(c, draw_, dtype(), /*share=*/false);
    const Tensor q = normal({T, H, K}), k = normal({T, G, K}), v = normal({T, G, K});
    for (const int64_t window : {1, 100, 256}) {
      for (const int64_t rows : {1, 3, 300}) {
        SCOPED_TRACE(fmt::format("window {}, {} rows of {}/{}x{}", window, rows, H, G, K));
        const int64_t seen = T - rows - window + 1;  // the first token that a row sees
        AttentionRows some = {.sequence_of_row = cache.rows.sequence_of_row.narrow(0, T - rows, rows),
                              .row_position = cache.rows.row_position.narrow(0, T - rows, rows),
                              .block_table = cache.rows.block_table,
                              .group_offsets = {},
                              .window = window};
        const auto attend = [&](const Tensor& k_TGK, const Tensor& v_TGK) {
          ops_->kv_append(cache.kv_layer, k_TGK, v_TGK, cache.rows.kv_tokens, cache.rows.kv_slots);
          return to_values(ops_->paged_attention(q.narrow(0, T - rows, rows), cache.kv_layer, some, Tensor()));
        };
        const Values want = attend(k, v);
        const auto unseen = [&](const Tensor& x_TGK) {
          const Tensor changed = x_TGK.clone();
          changed.narrow(0, 0, seen).fill_(std::numeric_limits<float>::quiet_NaN());
          return changed;
        };
        EXPECT_EQ(attend(unseen(k), unseen(v)), want) << "NaN";
        some.block_table = cache.rows.block_table.clone();
        some.block_table.narrow(1, 0, seen / kBlockTokens).fill_(some.block_table.select(0, 0)[0].item<int32_t>());
        EXPECT_EQ(attend(unseen(k), unseen(v)), want) << "another block";
      }
    }
  }
}

TEST_P(OpsTest, PagedAttentionAndItsGradients) {
  for (const auto [H, G, K] : {HeadDims{4, 2, 32}, {3, 3, 64}, {8, 1, 80}, {4, 2, 128}, {2, 1, 256}}) {
    const PagedCase c = draw_groups(draw_, 3, H, G, K);
    const PagedCache cache = place(c, draw_, dtype(), /*share=*/true);
    const int64_t T = c.num_tokens;
    const Tensor q = normal({T, H, K}), k = normal({T, G, K}), v = normal({T, G, K}), dout = normal({T, H, K});
    const Values vq = to_values(q), vk = to_values(k), vv = to_values(v);

    ops_->kv_append(cache.kv_layer, k, v, cache.rows.kv_tokens, cache.rows.kv_slots);
    const Tensor lse = at::empty({T, H}, at::kFloat);
    const Tensor out = ops_->paged_attention(q, cache.kv_layer, cache.rows, lse);
    const reference::AttentionResult want = reference::attention(c.attention, vq, vk, vv);
    EXPECT_EQ(out.scalar_type(), dtype());
    expect_close(fmt::format("paged_attention {}/{}x{}", H, G, K), out, want.out, attention_tolerance(K));
    expect_close("paged_attention lse", lse, want.lse, attention_tolerance(K));
    EXPECT_EQ(to_values(ops_->paged_attention(q, cache.kv_layer, cache.rows, Tensor())), to_values(out));
    EXPECT_EQ(to_values(ops_->paged_attention(q, cache.kv_layer, ops_->prepare(cache.rows), Tensor())), to_values(out));

    const Ops::AttentionGrad got = ops_->attention_backward(dout, q, out, lse, cache.kv_layer, cache.rows);
    // The backward is handed the rounded output, so the reference is too.
    const reference::AttentionGrad grad =
        reference::attention_backward(c.attention, to_values(dout), to_values(out), vq, vk, vv);
    for (const Tensor& d : {got.dq_THK, got.dk_TGK, got.dv_TGK}) EXPECT_EQ(d.scalar_type(), dtype());
    expect_close("attention_backward dq", got.dq_THK, grad.dq, attention_tolerance(K));
    expect_close("attention_backward dk", got.dk_TGK, grad.dk, attention_tolerance(K));
    expect_close("attention_backward dv", got.dv_TGK, grad.dv, attention_tolerance(K));
    const Ops::AttentionGrad prepared =
        ops_->attention_backward(dout, q, out, lse, cache.kv_layer, ops_->prepare(cache.rows));
    EXPECT_EQ(to_values(prepared.dq_THK), to_values(got.dq_THK));
    EXPECT_EQ(to_values(prepared.dk_TGK), to_values(got.dk_TGK));
    EXPECT_EQ(to_values(prepared.dv_TGK), to_values(got.dv_TGK));
  }
}

TEST_P(OpsTest, PagedAttentionOverHundredsOfKeys) {
  const int64_t H = 2, G = 1, K = 32;
  const PagedCase c = draw_groups(draw_, 2, H, G, K, kLongPrompts);
  const PagedCache cache = place(c, draw_, dtype(), /*share=*/true);
  const int64_t T = c.num_tokens;
  const Tensor q = normal({T, H, K}), k = normal({T, G, K}), v = normal({T, G, K});
  ops_->kv_append(cache.kv_layer, k, v, cache.rows.kv_tokens, cache.rows.kv_slots);
  const Tensor lse = at::empty({T, H}, at::kFloat);
  const Tensor out = ops_->paged_attention(q, cache.kv_layer, cache.rows, lse);
  const reference::AttentionResult want = reference::attention(c.attention, to_values(q), to_values(k), to_values(v));
  expect_close("paged_attention, long", out, want.out, attention_tolerance(K));
  expect_close("paged_attention lse, long", lse, want.lse, attention_tolerance(K));
}

// Long enough for every way in which a GPU computes it. On a CPU the tests above are as good, and this one is slow.
TEST_P(OpsTest, TheGradientOfAttentionOverHundredsOfKeys) {
  const std::vector<std::string> devices = device_backends();
  if (std::ranges::find(devices, GetParam().name) == devices.end()) GTEST_SKIP() << "asked of devices alone";
  struct Case {
    int64_t H, G, K, window;
  };
  for (const auto [H, G, K, window] : {Case{4, 2, 128, 0},
                                       {8, 2, 64, 0},
                                       {2, 2, 128, 0},
                                       {4, 2, 32, 0},
                                       {4, 2, 80, 0},
                                       {4, 2, 96, 0},
                                       {2, 1, 256, 0},
                                       {4, 2, 64, 16},
                                       {4, 2, 128, 100},
                                       {2, 2, 128, 512},
                                       {4, 1, 256, 128},
                                       {2, 1, 80, 350}}) {
    PagedCase c = draw_groups(draw_, 3, H, G, K, {5, 300, 513, 600}, 400);
    c.attention.window = window;
    PagedCache cache = place(c, draw_, dtype(), /*share=*/true);
    cache.rows.window = window;
    const int64_t T = c.num_tokens;
    const Tensor q = normal({T, H, K}), k = normal({T, G, K}), v = normal({T, G, K}), dout = normal({T, H, K});
    ops_->kv_append(cache.kv_layer, k, v, cache.rows.kv_tokens, cache.rows.kv_slots);
    const AttentionRows rows = ops_->prepare(cache.rows);
    const Tensor lse = at::empty({T, H}, at::kFloat);
    const Tensor out = ops_->paged_attention(q, cache.kv_layer, rows, lse);
    const Ops::AttentionGrad got = ops_->attention_backward(dout, q, out, lse, cache.kv_layer, rows);
    const reference::AttentionGrad grad = reference::attention_backward(c.attention, to_values(dout), to_values(out),
                                                                        to_values(q), to_values(k), to_values(v));
    const std::string of = fmt::format(", {} rows of {}/{}x{}, window {}", T, H, G, K, window);
    expect_close("dq" + of, got.dq_THK, grad.dq, attention_tolerance(K));
    expect_close("dk" + of, got.dk_TGK, grad.dk, attention_tolerance(K));
    expect_close("dv" + of, got.dv_TGK, grad.dv, attention_tolerance(K));
    for (int i = 0; i < 5; ++i) {
      const Ops::AttentionGrad again = ops_->attention_backward(dout, q, out, lse, cache.kv_layer, rows);
      EXPECT_EQ(to_values(again.dq_THK), to_values(got.dq_THK));
      EXPECT_EQ(to_values(again.dk_TGK), to_values(got.dk_TGK));
      EXPECT_EQ(to_values(again.dv_TGK), to_values(got.dv_TGK));
    }
  }
}

TEST_P(OpsTest, LogprobEntropyAndTheirGradient) {
  const int64_t R = 6, V = 301;
  const Ids targets = {0, 300, 17, -1, 5, 5};
  const Tensor logits = draw_.normal({R, V}, at::kFloat, 10.0, 3.0);
  const Tensor dlogp = draw_.normal({R}, at::kFloat), dentropy = draw_.normal({R}, at::kFloat);
  const Values x = to_values(logits);
  for (const double temperature : {1.0, 0.7}) {
    const Tensor logp = at::empty({R}), entropy = at::empty({R}), lse = at::empty({R});
    ops_->logprob(logits, to_tensor(targets), temperature, logp, entropy, lse);
    const reference::Logprob want = reference::logprob(x, targets, temperature);
    expect_close("logprob", logp, want.logp);
    expect_close("logprob entropy", entropy, want.entropy);
    expect_close("logprob lse", lse, want.lse, 1e-6);
    EXPECT_EQ(logp[3].item<float>(), 0.0F);
    const Tensor alone = at::empty({R});
    ops_->logprob(logits, to_tensor(targets), temperature, alone, Tensor(), lse);
    EXPECT_EQ(to_values(alone), to_values(logp)) << "log-probs depend on whether the entropy is wanted";

    const Tensor grad =
        ops_->logprob_backward(logits.clone(), to_tensor(targets), temperature, dlogp, dentropy, entropy, lse, dtype());
    EXPECT_TRUE(grad.scalar_type() == at::kFloat || grad.scalar_type() == dtype()) << grad.scalar_type();
    expect_close("logprob_backward", grad,
                 reference::logprob_backward(to_values(dlogp), to_values(dentropy), x, targets, temperature));
    const Tensor without = ops_->logprob_backward(logits.clone(), to_tensor(targets), temperature, dlogp, Tensor(),
                                                  Tensor(), lse, dtype());
    expect_close("logprob_backward, no entropy", without,
                 reference::logprob_backward(to_values(dlogp), Values(R, 0.0), x, targets, temperature));
  }
}

// The columns begin at multiples of 16, as tensor ranks have them, with targets in other columns too.
TEST_P(OpsTest, TheGradientOfSomeColumnsIsThatOfTheWhole) {
  const int64_t R = 5, V = 301, cut = 128;
  const Ids targets = {0, 300, 127, -1, 128};
  const Tensor logits = draw_.normal({R, V}, at::kFloat, 10.0, 3.0);
  const Tensor dlogp = draw_.normal({R}, at::kFloat), dentropy = draw_.normal({R}, at::kFloat);
  const Tensor logp = at::empty({R}), entropy = at::empty({R}), lse = at::empty({R});
  ops_->logprob(logits, to_tensor(targets), 0.7, logp, entropy, lse);
  const auto gradient = [&](int64_t begin, int64_t end) {
    Ids in_part;
    for (const int64_t target : targets) {
      const bool is_in_part = begin <= target && target < end;
      in_part.push_back(static_cast<int32_t>(target < 0 ? -1 : is_in_part ? target - begin : end - begin));
    }
    return ops_->logprob_backward(logits.narrow(1, begin, end - begin).clone(at::MemoryFormat::Contiguous),
                                  to_tensor(in_part), 0.7, dlogp, dentropy, entropy, lse, dtype());
  };
  EXPECT_EQ(to_values(at::cat({gradient(0, cut), gradient(cut, V)}, 1)), to_values(gradient(0, V)));
}

TEST_P(OpsTest, AdamwFollowsItsFormula) {
  const int64_t size = 1003;
  const Ops::AdamW p{
      .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 0.25, .step = 1};
  const Tensor master = draw_.normal({size}, at::kFloat);
  const Tensor weight = dtype() == at::kFloat ? master : master.to(dtype());
  const Tensor m = at::zeros({size}), v = at::zeros({size});
  Values w = to_values(master), wm(w.size(), 0.0), wv(w.size(), 0.0);
  for (int64_t step = 1; step <= 3; ++step) {
    const Tensor grad = draw_.normal({size}, at::kFloat);
    Ops::AdamW now = p;
    now.step = step;
    ops_->adamw(weight, master, grad, m, v, now);
    const Values g = to_values(grad);
    for (size_t i = 0; i < w.size(); ++i) {
      const double scaled = g[i] * p.grad_scale;
      wm[i] = p.beta1 * wm[i] + (1.0 - p.beta1) * scaled;
      wv[i] = p.beta2 * wv[i] + (1.0 - p.beta2) * scaled * scaled;
      const double m_hat = wm[i] / (1.0 - std::pow(p.beta1, step)), v_hat = wv[i] / (1.0 - std::pow(p.beta2, step));
      w[i] -= p.lr * p.weight_decay * w[i] + p.lr * m_hat / (std::sqrt(v_hat) + p.eps);
    }
  }
  expect_close("adamw master", master, w, 1e-6);
  expect_close("adamw m", m, wm, 1e-6);
  expect_close("adamw v", v, wv, 1e-6);
  EXPECT_EQ(to_values(weight), to_values(master.to(dtype()))) << "the weight is the rounded master";
}

// 1 - lr * weight_decay once was rounded to float32, which made 1.19e-7 of 1e-7 and nothing at all of 1e-8.
TEST_P(OpsTest, AdamwDecaysByLrTimesWeightDecayHoweverSmall) {
  if (dtype() != at::kFloat)
    GTEST_SKIP() << "the master is float32 whatever the dtype of the weights: asked once, with float32 weights";
  constexpr int64_t kSize = int64_t{1} << 21;  // large enough that the chance part of each rounding cancels out
  const Tensor start = draw_.normal({kSize}, at::kFloat, 0.0, 0.02);
  const Tensor grad = start.roll(1).mul(50.0), m_start = start.roll(2).mul(50.0);
  const Tensor v_start = start.roll(3).mul(50.0).square().add(0.1);
  const auto stepped = [&](double weight_decay) {
    const Tensor master = start.clone(), m = m_start.clone(), v = v_start.clone();
    ops_->adamw(master, master, grad, m, v,
                {.lr = 1e-6,
                 .beta1 = 0.9,
                 .beta2 = 0.98,
                 .eps = 1e-8,
                 .weight_decay = weight_decay,
                 .grad_scale = 1.0,
                 .step = 5});
    return master.to(at::kDouble);
  };
  const Tensor without = stepped(0.0);
  const double weight = start.to(at::kDouble).abs().sum().item<double>();
  for (const auto& [weight_decay, tolerance] : {std::pair{0.1, 1e-3}, {0.01, 1e-2}}) {
    const double decay = ((without - stepped(weight_decay)) * start.sign()).sum().item<double>() / weight;
    EXPECT_NEAR(decay, 1e-6 * weight_decay, tolerance * 1e-6 * weight_decay);
  }
}

TEST_P(OpsTest, SumsOfSquaresAreExactEnoughAndFixed) {
  const Tensor x = draw_.normal({77777}, at::kFloat);
  const std::vector<double> values = to_values(x);
  for (const int64_t block : {4096, 25600, 80000}) {
    const std::vector<double> sums = ops_->sums_of_squares(x, block);
    EXPECT_EQ(std::ssize(sums), (x.numel() + block - 1) / block);
    for (int64_t b = 0; b < std::ssize(sums); ++b) {
      const int64_t begin = b * block, count = std::min(block, x.numel() - begin);
      double want = 0;
      for (int64_t i = begin; i < begin + count; ++i) want += values[i] * values[i];
      EXPECT_NEAR(sums[b], want, 1e-12 * want);
      EXPECT_EQ(ops_->sums_of_squares(x.narrow(0, begin, count), block), std::vector{sums[b]})
          << "depends on its place or on the other blocks";
    }
    EXPECT_EQ(make_backend(GetParam().name, 1)->sums_of_squares(x, block), sums) << "depends on the number of threads";
  }
  EXPECT_TRUE(ops_->sums_of_squares(x.narrow(0, 0, 0), 4096).empty());
}

// Gradients are functions of their inputs, whatever the threads: a run's reproducibility rests on that.
TEST_P(OpsTest, GradientsDoNotDependOnTheThreads) {
  if (GetParam().name == "aten") GTEST_SKIP() << "the readable reference does not promise it";
  const int64_t T = 150, K = 80, N = 70;
  const Tensor x = normal({T, K}), w = normal({N, K}), dy = normal({T, N}), norm = normal({K}, 1.0, 0.25);
  const Ids ids = draw_.ids(T, 0, 9);
  const auto gradients = [&](int num_threads) {
    const std::unique_ptr<Ops> ops = make_backend(GetParam().name, num_threads);
    const Tensor dw = at::zeros({N, K}), dnorm = at::zeros({K}), dtable = at::zeros({10, K});
    const Tensor dx = ops->linear_grad_input(dy, w, dtype());
    ops->linear_grad_weight(dy, x, dw, GradientUse::kAdd);
    const Tensor dnormed = ops->rms_norm_backward(dx, x, norm, 1e-6, dnorm);
    ops->embedding_backward(dnormed, to_tensor(ids), dtable);
    return std::vector<Values>{to_values(dx), to_values(dw), to_values(dnormed), to_values(dnorm), to_values(dtable)};
  };
  const std::vector<Values> one = gradients(1), two = gradients(2);
  const char* names[] = {"linear_grad_input", "linear_grad_weight", "rms_norm_backward dx", "rms_norm_backward dw",
                         "embedding_backward"};
  for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(one[i], two[i]) << names[i] << "; seed " << kOpsSeed;
}

}  // namespace
}  // namespace tandem::device
