// A number of bytes, elements or tokens whose arithmetic cannot leave 64 bits unnoticed. What a configuration adds up
// to is computed with it: numbers that are each within bounds may have a product that is not.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <utility>

#include "tandem/error.h"

namespace tandem::base {

// The most that an option takes which counts samples, tokens or steps, and one which is a number of bytes: above what
// any machine holds, and low enough that two counts multiply within 64 bits.
constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxBytes = int64_t{1} << 60;

// Thrown by the arithmetic of Size. Whoever knows which flags and keys the numbers come from says them instead.
class SizeOverflow : public UserError {
 public:
  SizeOverflow() : UserError("a size is more than 64 bits hold: lower the largest of the flags and of config.json") {}
};

// Converts from and to whole numbers, so that a Size meets them in one expression; the result of such an operation is a
// Size. Of two plain numbers the operation is unchecked, as ever: the first factor of a product should be a Size.
class Size {
 public:
  constexpr Size() = default;
  template <std::integral T>
  constexpr Size(T value) : value_(static_cast<int64_t>(value)) {  // NOLINT: implicit on purpose
    if (!std::in_range<int64_t>(value)) throw SizeOverflow();
  }
  // The whole part of a number; SizeOverflow where it has none in 64 bits.
  static constexpr Size from(double value) {
    constexpr double kLimit = 9223372036854775808.0;  // 2^63
    if (!(value > -kLimit && value < kLimit)) throw SizeOverflow();
    return {static_cast<int64_t>(value)};
  }

  constexpr operator int64_t() const { return value_; }  // NOLINT: implicit on purpose

  constexpr Size& operator+=(Size other) { return *this = add(*this, other); }
  constexpr Size& operator-=(Size other) { return *this = subtract(*this, other); }
  constexpr Size& operator*=(Size other) { return *this = multiply(*this, other); }
  constexpr Size& operator/=(Size other) { return *this = divide(*this, other); }
  constexpr Size& operator++() { return *this += 1; }

  friend constexpr Size operator+(Size a, Size b) { return add(a, b); }
  friend constexpr Size operator-(Size a, Size b) { return subtract(a, b); }
  friend constexpr Size operator*(Size a, Size b) { return multiply(a, b); }
  friend constexpr Size operator/(Size a, Size b) { return divide(a, b); }
  friend constexpr Size operator%(Size a, Size b) { return {a.value_ % divisor(a, b)}; }
  // With a plain number on one side; else the compiler could not choose between the two conversions.
  template <std::integral T>
  friend constexpr Size operator+(Size a, T b) {
    return add(a, b);
  }
  template <std::integral T>
  friend constexpr Size operator+(T a, Size b) {
    return add(a, b);
  }
  template <std::integral T>
  friend constexpr Size operator-(Size a, T b) {
    return subtract(a, b);
  }
  template <std::integral T>
  friend constexpr Size operator-(T a, Size b) {
    return subtract(a, b);
  }
  template <std::integral T>
  friend constexpr Size operator*(Size a, T b) {
    return multiply(a, b);
  }
  template <std::integral T>
  friend constexpr Size operator*(T a, Size b) {
    return multiply(a, b);
  }
  template <std::integral T>
  friend constexpr Size operator/(Size a, T b) {
    return divide(a, b);
  }
  template <std::integral T>
  friend constexpr Size operator/(T a, Size b) {
    return divide(a, b);
  }
  template <std::integral T>
  friend constexpr Size operator%(Size a, T b) {
    return {a.value_ % divisor(a, b)};
  }

 private:
  static constexpr Size add(Size a, Size b) {
    Size result;
    if (__builtin_add_overflow(a.value_, b.value_, &result.value_)) throw SizeOverflow();
    return result;
  }
  static constexpr Size subtract(Size a, Size b) {
    Size result;
    if (__builtin_sub_overflow(a.value_, b.value_, &result.value_)) throw SizeOverflow();
    return result;
  }
  static constexpr Size multiply(Size a, Size b) {
    Size result;
    if (__builtin_mul_overflow(a.value_, b.value_, &result.value_)) throw SizeOverflow();
    return result;
  }
  static constexpr Size divide(Size a, Size b) { return {a.value_ / divisor(a, b)}; }
  // The two quotients that are no number of 64 bits.
  static constexpr int64_t divisor(Size a, Size b) {
    if (b.value_ == 0 || (b.value_ == -1 && a.value_ == std::numeric_limits<int64_t>::min())) throw SizeOverflow();
    return b.value_;
  }

  int64_t value_ = 0;
};

}  // namespace tandem::base
