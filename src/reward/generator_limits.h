// The number of processes that run the user's generate function, and what each of them may take.
#pragma once

#include <cstdint>

namespace tandem::reward {

struct GeneratorLimits {
  int64_t num_processes = 2;  // > 0
  int64_t max_samples = 256;  // samples that one process has under way at once, > 0
  double timeout_s = 60.0;    // the limit of a sample, beside what it waits for the engine, > 0
};

}  // namespace tandem::reward
