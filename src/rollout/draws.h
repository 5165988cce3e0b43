// Turns a group's sampling parameters into the draws of Ops::sample(), as the device reads them. No torch.
#pragma once

#include <cstdint>

#include "device/draw.h"
#include "rl/sample.h"

namespace tandem::rollout {

// Returns the draw of token `position` of the completion of that sample, from `row` of the logits.
device::Draw make_draw(const rl::SamplingParams& sampling, uint64_t sample_id, int64_t position, int64_t row);

}  // namespace tandem::rollout
