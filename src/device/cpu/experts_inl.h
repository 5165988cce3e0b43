// Kernels between a router and its experts (device/experts.h), row by row.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/cpu/kernels.h"
#include "device/cpu/math_inl.h"

namespace tandem::device::cpu {

template <class S>
struct Experts {
  using F = typename S::F;
  using M = Math<S>;

  static void route(const float* logits, int32_t* ids, float* weights, int64_t rows, const RouteArgs& a) {
    for (int64_t r = 0; r < rows; ++r, logits += a.experts, ids += a.chosen, weights += a.chosen) {
      choose(logits, ids, a);
      std::sort(ids, ids + a.chosen);
      const Softmax softmax = softmax_of(logits, ids, a);
      for (int64_t c = 0; c < a.chosen; ++c) weights[c] = exponential(logits[ids[c]], softmax.largest) / softmax.sum;
    }
  }

  // With the weights w of the chosen experts and their gradients g, and s = sum of w g: the logit of a chosen expert
  // has w g, less its probability times s. Where the weights are normalised, they are the probabilities.
  static void route_backward(const float* dweights, const float* logits, const int32_t* ids, const float* weights,
                             void* dlogits, int64_t rows, const RouteArgs& a, Elem elem) {
    with_elem(elem == Elem::kF32, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      T* out = static_cast<T*>(dlogits);
      for (int64_t r = 0; r < rows; ++r) {
        float sum = 0.0F;
        for (int64_t c = 0; c < a.chosen; ++c) sum += weights[c] * dweights[c];
        if (a.normalises) {
          std::fill_n(out, a.experts, T{});
          for (int64_t c = 0; c < a.chosen; ++c) put(out + ids[c], weights[c] * (dweights[c] - sum));
        } else {
          const Softmax softmax = softmax_of(logits, ids, a);
          const F largest = S::set1(softmax.largest), total = S::set1(softmax.sum), minus_sum = S::set1(-sum);
          for (int64_t i = 0; i < a.experts; i += 16) {
            const F e = M::exp(S::sub(M::load(logits + i, a.experts - i), largest));
            M::store(out + i, S::mul(S::div(e, total), minus_sum), a.experts - i);
          }
          for (int64_t c = 0; c < a.chosen; ++c) {
            const float probability = exponential(logits[ids[c]], softmax.largest) / softmax.sum;
            put(out + ids[c], weights[c] * dweights[c] - probability * sum);
          }
        }
        dweights += a.chosen, ids += a.chosen, weights += a.chosen, logits += a.experts, out += a.experts;
      }
    });
  }

  static void sum_of_experts(const void* y, const float* weights, const int32_t* places, const void* residual,
                             void* sum, int64_t rows, const ExpertSumArgs& a) {
    with_elem(a.y_elem == Elem::kF32, [&](auto* y_type) {
      with_elem(a.sum_elem == Elem::kF32, [&](auto* sum_type) {
        using Y = std::remove_pointer_t<decltype(y_type)>;
        using T = std::remove_pointer_t<decltype(sum_type)>;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t i = 0; i < a.width; i += 16) {
            const int64_t left = a.width - i;
            F total = S::zero();
            for (int64_t c = 0; c < a.chosen; ++c) {
              const F term = M::load(static_cast<const Y*>(y) + places[c] * a.width + i, left);
              total = weights == nullptr ? S::add(total, term) : S::fma(S::set1(weights[c]), term, total);
            }
            if (residual != nullptr)
              total = S::add(M::load(static_cast<const T*>(residual) + r * a.width + i, left), total);
            M::store(static_cast<T*>(sum) + r * a.width + i, total, left);
          }
          places += a.chosen;
          if (weights != nullptr) weights += a.chosen;
        }
      });
    });
  }

  static void weighted_silu_backward(const void* da, const void* gate_up, const float* weights, void* dgate_up,
                                     void* weighted, float* dweights, int64_t rows, int64_t width, Elem elem) {
    with_elem(elem == Elem::kF32, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const F one = S::set1(1.0F);
      for (int64_t r = 0; r < rows; ++r) {
        const T* gate = static_cast<const T*>(gate_up) + r * 2 * width;
        const T* up = gate + width;
        const T* d = static_cast<const T*>(da) + r * width;
        T* dgate = static_cast<T*>(dgate_up) + r * 2 * width;
        const F weight = S::set1(weights[r]);
        F dweight = S::zero();
        for (int64_t i = 0; i < width; i += 16) {
          const int64_t left = width - i;
          const F g = M::load(gate + i, left), u = M::load(up + i, left);
          const F s = M::sigmoid(g), silu = S::mul(g, s), activated = S::mul(silu, u);
          const F unweighted = M::load(d + i, left), gradient = S::mul(unweighted, weight);
          dweight = S::fma(unweighted, activated, dweight);
          M::store(static_cast<T*>(weighted) + r * width + i, S::mul(activated, weight), left);
          const F slope = S::mul(s, S::fma(g, S::sub(one, s), one));
          M::store(dgate + i, S::mul(S::mul(gradient, u), slope), left);
          M::store(dgate + width + i, S::mul(gradient, silu), left);
        }
        dweights[r] = S::reduce_sum(dweight);
      }
    });
  }

 private:
  struct Softmax {
    float largest, sum;
  };

  // Writes the experts with the largest logits, in that order. They are inserted by rising id, each behind those that
  // are not smaller. A NaN is larger than nothing.
  static void choose(const float* logits, int32_t* ids, const RouteArgs& a) {
    int64_t count = 0;
    for (int32_t e = 0; e < a.experts; ++e) {
      if (count == a.chosen && !(logits[e] > logits[ids[count - 1]])) continue;
      int64_t at = count < a.chosen ? count++ : count - 1;
      for (; at > 0 && logits[e] > logits[ids[at - 1]]; --at) ids[at] = ids[at - 1];
      ids[at] = e;
    }
  }

  // The sum is NaN where a logit of the row is not finite: 0 times that is NaN.
  static Softmax softmax_of(const float* logits, const int32_t* ids, const RouteArgs& a) {
    float largest = logits[ids[0]], sum = 0.0F;
    for (int64_t c = 1; c < a.chosen; ++c) largest = std::max(largest, logits[ids[c]]);
    if (a.normalises) {
      for (int64_t c = 0; c < a.chosen; ++c) sum += exponential(logits[ids[c]], largest);
    } else {
      alignas(64) float exponentials[16];
      for (int64_t i = 0; i < a.experts; i += 16) {
        const int64_t count = std::min<int64_t>(16, a.experts - i);
        S::store(exponentials, M::exp(S::sub(M::load(logits + i, count), S::set1(largest))));
        for (int64_t j = 0; j < count; ++j) sum += exponentials[j];
      }
    }
    float not_finite = 0.0F;
    for (int64_t e = 0; e < a.experts; ++e) not_finite += 0.0F * logits[e];
    return {largest, sum + not_finite};
  }

  // Every caller's exponentials are those of a lane of Math::exp(), which are alike.
  static float exponential(float logit, float largest) {
    alignas(64) float lanes[16];
    S::store(lanes, M::exp(S::sub(S::set1(logit), S::set1(largest))));
    return lanes[0];
  }
  static void put(float* to, float x) { *to = x; }
  static void put(uint16_t* to, float x) { S::store_partial(to, S::set1(x), 1); }
};

}  // namespace tandem::device::cpu
