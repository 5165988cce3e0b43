// Tests of the reference itself: each backward is the derivative of its forward, by central differences along random
// directions.
#include "tests/device/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/rng.h"

namespace tandem::device::reference {
namespace {

constexpr uint64_t kReferenceSeed = 20;

Values random_values(int64_t size, uint64_t stream) {
  Values x;
  for (int64_t i = 0; i < size; ++i)
    x.push_back(2.0 * base::uniform(kReferenceSeed, stream, static_cast<uint64_t>(i)) - 1.0);
  return x;
}

double dot(const Values& a, const Values& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// `gradient` is that of dot(dy, f(x)) at x.
void expect_derivative(const std::function<Values(const Values&)>& f, const Values& x, const Values& dy,
                       const Values& gradient) {
  constexpr double kStep = 1e-5;
  for (uint64_t direction = 0; direction < 5; ++direction) {
    const Values u = random_values(static_cast<int64_t>(x.size()), 1000 + direction);
    Values ahead = x, behind = x;
    for (size_t i = 0; i < x.size(); ++i) {
      ahead[i] += kStep * u[i];
      behind[i] -= kStep * u[i];
    }
    const double slope = (dot(dy, f(ahead)) - dot(dy, f(behind))) / (2.0 * kStep);
    EXPECT_NEAR(dot(gradient, u), slope, 1e-8 * (1.0 + std::abs(slope))) << "seed " << kReferenceSeed;
  }
}

TEST(Reference, LinearBackwardIsItsDerivative) {
  const Values x = random_values(3 * 5, 0), w = random_values(4 * 5, 1), dy = random_values(3 * 4, 2);
  expect_derivative([&](const Values& at) { return linear(at, w, 3, 5, 4); }, x, dy, linear_grad_input(dy, w, 3, 5, 4));
  expect_derivative([&](const Values& at) { return linear(x, at, 3, 5, 4); }, w, dy,
                    linear_grad_weight(dy, x, 3, 5, 4));
}

TEST(Reference, RmsNormBackwardIsItsDerivative) {
  const Values x = random_values(3 * 8, 0), w = random_values(8, 1), dy = random_values(3 * 8, 2);
  const NormGrad grad = rms_norm_backward(dy, x, w, 1e-3);
  expect_derivative([&](const Values& at) { return rms_norm(at, w, 1e-3); }, x, dy, grad.dx);
  expect_derivative([&](const Values& at) { return rms_norm(x, at, 1e-3); }, w, dy, grad.dw);
}

TEST(Reference, QkNormRopeBackwardIsItsDerivative) {
  const QkvDims d{.H = 4, .G = 2, .K = 6, .rope_theta = 1e4, .eps = 1e-6};
  const Ids positions = {0, 3, 11};
  const Values qkv = random_values(3 * 8 * 6, 0), q_norm = random_values(6, 1), k_norm = random_values(6, 2);
  const Values dy = random_values(3 * 8 * 6, 3);
  const auto flat = [](const Qkv& x) {
    Values all = x.q;
    all.insert(all.end(), x.k.begin(), x.k.end());
    all.insert(all.end(), x.v.begin(), x.v.end());
    return all;
  };
  const Qkv split{{dy.begin(), dy.begin() + 72}, {dy.begin() + 72, dy.begin() + 108}, {dy.begin() + 108, dy.end()}};
  const QkvGrad grad = qk_norm_rope_backward(split, qkv, q_norm, k_norm, positions, d);
  expect_derivative([&](const Values& at) { return flat(qk_norm_rope(at, q_norm, k_norm, positions, d)); }, qkv, dy,
                    grad.dqkv);
  expect_derivative([&](const Values& at) { return flat(qk_norm_rope(qkv, at, k_norm, positions, d)); }, q_norm, dy,
                    grad.dq_norm);
  expect_derivative([&](const Values& at) { return flat(qk_norm_rope(qkv, q_norm, at, positions, d)); }, k_norm, dy,
                    grad.dk_norm);
}

TEST(Reference, RopeBackwardIsItsDerivative) {
  const QkvDims d{.H = 2, .G = 1, .K = 6, .rope_theta = 1e4, .eps = 0, .rope_factors = {1.0F, 0.5F, 0.125F}};
  const Ids positions = {0, 3, 11};
  const Values qkv = random_values(3 * 4 * 6, 0), dy = random_values(3 * 4 * 6, 1);
  const Qkv split{{dy.begin(), dy.begin() + 36}, {dy.begin() + 36, dy.begin() + 54}, {dy.begin() + 54, dy.end()}};
  const auto flat = [&](const Values& at) {
    Qkv x = rope(at, positions, d);
    x.q.insert(x.q.end(), x.k.begin(), x.k.end());
    x.q.insert(x.q.end(), x.v.begin(), x.v.end());
    return x.q;
  };
  expect_derivative(flat, qkv, dy, rope_backward(split, positions, d));
}

TEST(Reference, SiluMulBackwardIsItsDerivative) {
  const Values x = random_values(3 * 10, 0), dy = random_values(3 * 5, 1);
  expect_derivative([&](const Values& at) { return silu_mul(at, 5); }, x, dy, silu_mul_backward(dy, x, 5));
}

TEST(Reference, AttentionBackwardIsItsDerivative) {
  const AttentionCase c{.H = 4,
                        .G = 2,
                        .K = 6,
                        .sequences = {{0, 1, 2, 3}, {0, 1, 4}},
                        .sequence_of_row = {0, 0, 0, 0, 1},
                        .row_position = {0, 1, 2, 3, 2}};
  const Values q = random_values(5 * 4 * 6, 0), k = random_values(5 * 2 * 6, 1), v = random_values(5 * 2 * 6, 2);
  const Values dy = random_values(5 * 4 * 6, 3);
  const AttentionGrad grad = attention_backward(c, dy, attention(c, q, k, v).out, q, k, v);
  expect_derivative([&](const Values& at) { return attention(c, at, k, v).out; }, q, dy, grad.dq);
  expect_derivative([&](const Values& at) { return attention(c, q, at, v).out; }, k, dy, grad.dk);
  expect_derivative([&](const Values& at) { return attention(c, q, k, at).out; }, v, dy, grad.dv);
}

TEST(Reference, LogprobBackwardIsItsDerivative) {
  const Ids targets = {2, -1, 0};
  const Values logits = random_values(3 * 7, 0), dlogp = random_values(3, 1), dentropy = random_values(3, 2);
  Values dy = dlogp;
  dy.insert(dy.end(), dentropy.begin(), dentropy.end());
  const auto both = [&](const Values& at) {
    Logprob result = logprob(at, targets, 0.7);
    result.logp.insert(result.logp.end(), result.entropy.begin(), result.entropy.end());
    return result.logp;
  };
  expect_derivative(both, logits, dy, logprob_backward(dlogp, dentropy, logits, targets, 0.7));
}

}  // namespace
}  // namespace tandem::device::reference
