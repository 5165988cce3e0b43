// How much of the device a run may take. What it takes it for is run/plan.
#pragma once

#include <cstdint>
#include <optional>

#include "base/options.h"
#include "device/ops_plan.h"

namespace tandem::run {

struct MemoryOptions {
  double gpu_memory_utilization = 0.9;
  int64_t train_memory_margin_bytes = int64_t{1} << 30;
  int64_t device_memory_bytes = 0;    // 0: what the machine says
  std::optional<double> arena_slack;  // of what the arena has to hold; unset: arena_slack_for()
  bool offload_train = false;         // both of the next
  bool offload_optimizer = false, offload_reference = false;
  bool debug_unmap_idle_view = false;

  // For holes between tensors. 11 % was the most that best fit needed with the temporaries of operations in plain ATen,
  // 2 % with the CPU's own, which have none (docs/MEMORY.md).
  double arena_slack_for(device::OpsFamily family) const {
    return arena_slack.value_or(family == device::OpsFamily::kCpu ? 0.05 : 0.15);
  }
  bool offloads_optimizer() const { return offload_train || offload_optimizer; }
  bool offloads_reference() const { return offload_train || offload_reference; }

  void visit(base::Options& options);
};

}  // namespace tandem::run
