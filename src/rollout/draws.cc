#include "rollout/draws.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem::rollout {

device::Draw make_draw(const rl::SamplingParams& sampling, uint64_t sample_id, int64_t position, int64_t row) {
  device::Draw draw;
  draw.seed = sampling.seed;
  draw.sample_id = sample_id;
  draw.temperature = sampling.temperature;
  draw.top_p = sampling.top_p;
  if (sampling.min_p > 0.0) draw.log_min_p = std::log(sampling.min_p);
  draw.row = static_cast<int32_t>(row);
  draw.position = static_cast<int32_t>(position);
  draw.top_k = static_cast<int32_t>(std::min<int64_t>(sampling.top_k, std::numeric_limits<int32_t>::max()));
  return draw;
}

}  // namespace tandem::rollout
