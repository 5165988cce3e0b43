// Keeps cosine and sine of the rotary angles by position, computed once. They are float32 as in Hugging Face: inverse
// frequency theta^(-2i/K) rounded to float, times its factor, angle = position * frequency in float.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace tandem::device::cpu {

class RopeTable {
 public:
  // Returns for each position a row of K floats: K/2 cosines, then K/2 sines. Pointers stay valid for the table's life.
  // Each of the K/2 frequencies is multiplied by its factor; empty `factors` mean 1.
  std::vector<const float*> rows(const int32_t* positions, int64_t n, int64_t head_dim, double theta,
                                 const std::vector<float>& factors);

 private:
  static constexpr int64_t kPagePositions = 1024;
  struct Pages {
    int64_t head_dim;
    double theta;
    std::vector<float> factors;
    std::vector<std::unique_ptr<float[]>> pages;
    std::unique_ptr<float[]> build(int64_t page) const;
  };
  Pages& pages_for(int64_t head_dim, double theta, const std::vector<float>& factors);

  std::vector<std::unique_ptr<Pages>> tables_;
};

}  // namespace tandem::device::cpu
