// Holds the progress of the optimizer: plain data, saved with its tensors. No torch.
#pragma once

#include <cstdint>

namespace tandem::trainer {

struct OptimizerProgress {
  int64_t updates = 0;  // updates of the moments, for AdamW's bias correction
  int64_t steps = 0;    // updates, skipped steps and those without a gradient, for the learning rate's schedule
  bool operator==(const OptimizerProgress&) const = default;
};

}  // namespace tandem::trainer
