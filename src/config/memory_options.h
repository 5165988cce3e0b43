// How much of the device a run may take. What it takes it for is run/plan.
#pragma once

#include <cstdint>
#include <optional>

#include "base/options.h"

namespace tandem::config {

struct MemoryOptions {
  double gpu_memory_utilization = 0.9;
  int64_t train_memory_margin_bytes = int64_t{1} << 30;
  int64_t device_memory_bytes = 0;    // 0: what the machine says
  std::optional<double> arena_slack;  // of what the arena has to hold, for holes between tensors; unset: the plan's
  bool offload_train = false;         // both of the next
  bool offload_optimizer = false, offload_reference = false;
  bool fit = false;  // what does not fit is changed until it does, and not refused
  bool debug_unmap_idle_view = false;

  bool offloads_optimizer() const { return offload_train || offload_optimizer; }
  bool offloads_reference() const { return offload_train || offload_reference; }

  void visit(base::Options& options);
};

}  // namespace tandem::config
