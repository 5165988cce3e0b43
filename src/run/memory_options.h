// How much of the device a run may take. What it takes it for is run/plan.
#pragma once

#include <cstdint>

#include "base/options.h"

namespace tandem::run {

struct MemoryOptions {
  double gpu_memory_utilization = 0.9;
  int64_t train_memory_margin_bytes = int64_t{1} << 30;
  int64_t device_memory_bytes = 0;  // 0: what the machine says

  void visit(base::Options& options);
};

}  // namespace tandem::run
