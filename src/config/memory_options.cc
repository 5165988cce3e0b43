#include "config/memory_options.h"

#include "base/size.h"

namespace tandem::config {

void MemoryOptions::visit(base::Options& options) {
  const char* const group = "memory plan";
  options
      .option(gpu_memory_utilization, "gpu-memory-utilization", group,
              "keys and values take what is left of this share of the device while sampling")
      .greater_than(0.0)
      .at_most(1.0)
      .does_not_affect_results();
  options
      .option(train_memory_margin_bytes, "train-memory-margin-bytes", group,
              "bytes that keys and values leave free while training")
      .at_least(0)
      .at_most(base::kMaxBytes)
      .does_not_affect_results();
  options
      .option(device_memory_bytes, "device-memory-bytes", group,
              "bytes of device memory to plan for; 0: the machine's (cpu), what is free (cuda; tandem plan: unknown)")
      .at_least(0)
      .at_most(base::kMaxBytes)
      .does_not_affect_results();
  options
      .option(arena_slack, "arena-slack", group,
              "share that the arena of rollout and training is larger than what it has to hold, for holes between "
              "tensors; unset: 0.05, and on a GPU at least 256 MiB, but within 0.15")
      .at_least(0.0)
      .at_most(1.0)
      .does_not_affect_results();
  options
      .option(offload_train, "offload-train", group,
              "while sampling, the host has all that only training needs: --offload-optimizer and --offload-reference")
      .does_not_affect_results();
  options
      .option(offload_optimizer, "offload-optimizer", group,
              "float32 masters and moments live in pinned host memory; an update streams them through the device")
      .does_not_affect_results();
  options
      .option(offload_reference, "offload-reference", group,
              "the weights of the KL reference live in pinned host memory and come to the device to score")
      .does_not_affect_results();
  options
      .option(debug_unmap_idle_view, "debug-unmap-idle-view", group,
              "unmap what the phase does not own, so that a stray access ends the run; costs time at each phase change")
      .does_not_affect_results();
}

}  // namespace tandem::config
