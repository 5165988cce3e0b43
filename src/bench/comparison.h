// The result of comparing numbers that should be the same. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace tandem::bench {

// The result of comparing two lists of numbers: how many there are, how many are not as they should be, and by how much
// at most.
struct Comparison {
  int64_t compared = 0, different = 0;
  double largest = 0.0;

  // Returns whether all agree. Nothing compared means no.
  bool is_equal() const { return different == 0 && compared > 0; }
  // Returns "24,576 log-probs" where all agree, else "3 of 24,576 log-probs differ, by 0.1 at most".
  std::string text(const std::string& what) const;

  Comparison& operator+=(const Comparison& other) {
    compared += other.compared;
    different += other.different;
    largest = std::max(largest, other.largest);
    return *this;
  }
};

}  // namespace tandem::bench
