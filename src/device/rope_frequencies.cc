#include "device/rope_frequencies.h"

#include <cmath>

#include "base/check.h"

namespace tandem::device {

std::vector<float> rope_frequencies(int64_t head_dim, double theta, const std::vector<float>& factors) {
  std::vector<float> frequencies(static_cast<size_t>(head_dim / 2));
  TANDEM_CHECK(factors.empty() || factors.size() == frequencies.size(), factors.size(), "factors for a head of",
               head_dim);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    frequencies[i] = 1.0F / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
    if (!factors.empty()) frequencies[i] *= factors[i];
  }
  return frequencies;
}

}  // namespace tandem::device
