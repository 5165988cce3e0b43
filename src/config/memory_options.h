// Declares the options that limit how much of the device a run may take. plan/plan.h decides what it is used for.
#pragma once

#include <cstdint>
#include <optional>

#include "options/options.h"

namespace tandem::config {

struct MemoryOptions {
  double gpu_memory_utilization = 0.9;
  int64_t train_memory_margin_bytes = int64_t{1} << 30;
  int64_t device_memory_bytes = 0;    // 0: the machine's
  std::optional<double> arena_slack;  // extra share of the arena for holes between tensors; unset: the plan's
  bool offload_train = false;         // all four of the next
  bool offload_optimizer = false, offload_reference = false, offload_teacher = false, offload_rm_model = false;
  bool fit = false;  // change options until the run fits, instead of refusing it
  bool debug_unmap_idle_view = false;

  bool offloads_optimizer() const { return offload_train || offload_optimizer; }
  bool offloads_reference() const { return offload_train || offload_reference; }
  bool offloads_teacher() const { return offload_train || offload_teacher; }
  bool offloads_rm_model() const { return offload_train || offload_rm_model; }

  void visit(options::Options& options);
};

}  // namespace tandem::config
