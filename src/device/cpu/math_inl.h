// Elementary functions on sixteen lanes, and loops over a row in steps of sixteen.
#pragma once

#include <cstdint>

namespace tandem::device::cpu {

template <class S>
struct Math {
  using F = typename S::F;

  // Computes e^x within 2 ulp: Cody-Waite reduction by ln 2, then the degree-6 polynomial of Cephes' expf. Below -87.3
  // (where float has no normal result) it is 0, above 88 it stays at e^88. NaN gives NaN: where an operand is NaN,
  // max() and min() return the second one, so x stands second in both.
  static F exp(F x) {
    constexpr float kLow = -87.3F;
    const F clamped = S::min(S::set1(88.0F), S::max(S::set1(kLow), x));
    const F n = S::round(S::mul(clamped, S::set1(1.44269504088896341F)));
    F r = S::fma(n, S::set1(-0.693359375F), clamped);
    r = S::fma(n, S::set1(2.12194440e-4F), r);
    F p = S::set1(1.9875691500e-4F);
    p = S::fma(p, r, S::set1(1.3981999507e-3F));
    p = S::fma(p, r, S::set1(8.3334519073e-3F));
    p = S::fma(p, r, S::set1(4.1665795894e-2F));
    p = S::fma(p, r, S::set1(1.6666665459e-1F));
    p = S::fma(p, r, S::set1(5.0000001201e-1F));
    p = S::fma(p, S::mul(r, r), S::add(r, S::set1(1.0F)));
    return S::select_less(x, S::set1(kLow), S::zero(), S::scale2(p, n));
  }

  static F sigmoid(F x) {
    const F one = S::set1(1.0F);
    return S::div(one, S::add(one, exp(S::sub(S::zero(), x))));
  }

  template <typename T>
  static F load(const T* p, int64_t left) {
    return left >= 16 ? S::load(p) : S::load_partial(p, left);
  }
  template <typename T>
  static void store(T* p, F x, int64_t left) {
    if (left >= 16) {
      S::store(p, x);
    } else {
      S::store_partial(p, x, left);
    }
  }

  // Sums a[i] * b[i] lane by lane, then across lanes: there is one order for a given width.
  template <typename A, typename B>
  static float dot(const A* a, const B* b, int64_t width) {
    F sum = S::zero();
    for (int64_t i = 0; i < width; i += 16) sum = S::fma(load(a + i, width - i), load(b + i, width - i), sum);
    return S::reduce_sum(sum);
  }
};

// Calls f with a typed pointer pair for the element type.
template <typename Function>
void with_elem(bool is_float, Function f) {
  if (is_float) {
    f(static_cast<float*>(nullptr));
  } else {
    f(static_cast<uint16_t*>(nullptr));
  }
}

}  // namespace tandem::device::cpu
