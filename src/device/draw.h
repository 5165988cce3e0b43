// One token to be drawn from a row of logits, as plain data that the host writes and the device reads. No torch.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

namespace tandem::device {

// Ops::sample() takes an array of these as bytes. device/sampler.h states the rule of a draw.
struct Draw {
  uint64_t seed = 0, sample_id = 0;
  double temperature = 1.0;  // 0: the largest logit is taken
  double top_p = 1.0;        // >= 1: off
  // The host takes the logarithm of min_p, because the last bit of a device's own may differ. -infinity means off.
  double log_min_p = -std::numeric_limits<double>::infinity();
  int32_t row = -1;          // row of the logits; -1: nothing is drawn and nothing written
  int32_t position = 0;      // number of tokens of the completion before this one
  int32_t top_k = -1;        // <= 0: off
  int32_t reserved[3] = {};  // padding to 64 bytes
};
static_assert(sizeof(Draw) == 64);
static_assert(std::is_trivially_copyable_v<Draw>);

}  // namespace tandem::device
