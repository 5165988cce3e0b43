// Defines the kernels at the end of the model: log-probabilities over a row of logits, their backward, and AdamW.
#pragma once

#include <cmath>
#include <cstdint>

#include "device/cpu/kernels.h"
#include "device/cpu/math_inl.h"

namespace tandem::device::cpu {

template <class S>
struct Loss {
  using F = typename S::F;
  using M = Math<S>;

  // With z = logits / T, lse = max + log sum exp(z - max); logp = z[target] - lse; entropy = lse - sum p z, computed
  // against the maximum so that large logits cost no digits. A logit that is not finite makes all three NaN.
  static void logprob(const float* logits, int64_t vocab, int64_t target, float inverse_temperature, float* logp,
                      float* entropy, float* lse) {
    const F scale = S::set1(inverse_temperature);
    const F none = S::set1(-__builtin_inff());
    F top = none;
    F not_finite = S::zero();  // sum of 0 times each logit: 0, or NaN
    for (int64_t v = 0; v < vocab; v += 16) {
      const F logit = M::load(logits + v, vocab - v);
      const F z = S::mul(logit, scale);
      not_finite = S::fma(logit, S::zero(), not_finite);
      top = S::max(top, vocab - v < 16 ? S::keep_first(z, vocab - v, none) : z);
    }
    const float maximum = S::reduce_max(top);
    F sum = not_finite;
    F weighted = S::zero();
    for (int64_t v = 0; v < vocab; v += 16) {
      const F z = S::sub(S::mul(M::load(logits + v, vocab - v), scale), S::set1(maximum));
      F e = M::exp(z);
      if (vocab - v < 16) e = S::keep_first(e, vocab - v, S::zero());
      sum = S::add(sum, e);
      // exp() is 0 far below the maximum, where z may be -inf at a low temperature: its share of p z is 0, not NaN.
      weighted = S::fma(e, S::max(S::set1(-1e4F), z), weighted);
    }
    const float total = S::reduce_sum(sum);
    const float log_total = std::log(total);
    *lse = maximum + log_total;
    if (logp != nullptr) *logp = target < 0 ? 0.0F : (logits[target] * inverse_temperature - maximum) - log_total;
    if (entropy != nullptr) *entropy = log_total - S::reduce_sum(weighted) / total;
  }

  // Computes d logits = (dlogp (1[v = target] - p) - dentropy p (log p + H)) / T.
  static void logprob_backward(float* logits, int64_t vocab, int64_t target, float inverse_temperature, float dlogp,
                               float dentropy, float entropy, float lse) {
    const F scale = S::set1(inverse_temperature);
    if (target < 0) dlogp = 0.0F;
    for (int64_t v = 0; v < vocab; v += 16) {
      const int64_t left = vocab - v;
      const F logp = S::sub(S::mul(M::load(logits + v, left), scale), S::set1(lse));
      const F p = M::exp(logp);
      const F h = S::add(S::max(S::set1(-1e4F), logp), S::set1(entropy));
      const F slope = S::fma(S::set1(dentropy), h, S::set1(dlogp));
      M::store(logits + v, S::mul(S::sub(S::zero(), S::mul(p, slope)), scale), left);
    }
    if (target >= 0 && target < vocab) logits[target] += dlogp * inverse_temperature;
  }

  template <typename T>
  static void adamw_as(T* weight, float* master, const float* grad, float* m, float* v, int64_t n,
                       const AdamwArgs& args) {
    const bool separate = static_cast<const void*>(weight) != static_cast<const void*>(master);
    for (int64_t i = 0; i < n; i += 16) {
      const int64_t left = n - i;
      const F g = S::mul(M::load(grad + i, left), S::set1(args.grad_scale));
      const F m1 = S::fma(S::set1(args.one_minus_beta1), g, S::mul(S::set1(args.beta1), M::load(m + i, left)));
      const F v1 =
          S::fma(S::mul(S::set1(args.one_minus_beta2), g), g, S::mul(S::set1(args.beta2), M::load(v + i, left)));
      const F denominator = S::fma(S::sqrt(v1), S::set1(args.inverse_sqrt_correction2), S::set1(args.eps));
      // The decay joins the update before the weight's only rounding, because 1 - lr * weight decay is no float32
      // number.
      const F w0 = M::load(master + i, left);
      const F update = S::fma(S::set1(args.decay), w0, S::div(m1, denominator));
      const F w = S::fma(S::set1(-args.lr_scaled), update, w0);
      M::store(m + i, m1, left);
      M::store(v + i, v1, left);
      M::store(master + i, w, left);
      if (separate) M::store(weight + i, w, left);
    }
  }
  static void adamw(void* weight, Elem elem, float* master, const float* grad, float* m, float* v, int64_t n,
                    const AdamwArgs& args) {
    if (elem == Elem::kF32) {
      adamw_as(static_cast<float*>(weight), master, grad, m, v, n, args);
    } else {
      adamw_as(static_cast<uint16_t*>(weight), master, grad, m, v, n, args);
    }
  }
};

}  // namespace tandem::device::cpu
