// The most that an option may ask for of things that are counted: tokens, samples, steps, processes. A product of two
// counts then fits 64 bits, and one count an int.
#pragma once

namespace tandem::run {

constexpr double kMaxCount = 2147483647;

}  // namespace tandem::run
