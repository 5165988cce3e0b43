// A number of bytes, elements or tokens whose arithmetic cannot overflow 64 bits unnoticed. Sums and products of a
// configuration's values are computed with it: numbers within their bounds may have a product that is not.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <utility>

#include "tandem/error.h"

namespace tandem::base {

// The largest value of an option that counts samples, tokens or steps, and of one that is a number of bytes. Both are
// above what any machine holds, and low enough that two counts multiply within 64 bits.
constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxBytes = int64_t{1} << 60;

// Bytes of one float32.
constexpr int64_t kFloatBytes = 4;

// It is thrown by the arithmetic of Size. A caller that knows the flags and keys behind the numbers throws a message
// about those instead.
class SizeOverflow : public UserError {
 public:
  SizeOverflow() : UserError("a size is more than 64 bits hold: lower the largest of the flags and of config.json") {}
};

// Converts from and to whole numbers, so that a Size and a number meet in one expression, whose result is a Size. An
// operation on two plain numbers stays unchecked: the first factor of a product should be a Size.
class Size {
 public:
  constexpr Size() = default;
  template <std::integral T>
  constexpr Size(T value) : value_(static_cast<int64_t>(value)) {  // NOLINT: implicit on purpose
    if (!std::in_range<int64_t>(value)) throw SizeOverflow();
  }
  // Returns the whole part of a number. Throws SizeOverflow if that does not fit into 64 bits.
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
  // These overloads take a plain number on one side; without them the compiler could not choose between the two
  // conversions.
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
  // Two quotients do not fit into 64 bits: a division by zero, and the smallest number divided by -1.
  static constexpr int64_t divisor(Size a, Size b) {
    if (b.value_ == 0 || (b.value_ == -1 && a.value_ == std::numeric_limits<int64_t>::min())) throw SizeOverflow();
    return b.value_;
  }

  int64_t value_ = 0;
};

}  // namespace tandem::base
