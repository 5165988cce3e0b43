#include "config/memory_options.h"

#include <fmt/format.h>

#include "base/size.h"
#include "device/backends.h"

namespace tandem::config {

void MemoryOptions::visit(options::Options& options) {
  const char* const group = "memory plan";
  options
      .option(gpu_memory_utilization, "gpu-memory-utilization", group,
              "share of the device's memory that a run may take while sampling: the KV cache takes what is left of it")
      .greater_than(0.0)
      .at_most(1.0)
      .does_not_affect_results();
  options
      .option(train_memory_margin_bytes, "train-memory-margin-bytes", group,
              "bytes of device memory that the KV cache leaves free for training")
      .bytes()
      .at_least(0)
      .at_most(base::kMaxBytes)
      .does_not_affect_results();
  options
      .option(
          device_memory_bytes, "device-memory-bytes", group,
          fmt::format("bytes of device memory to plan for; 0: the machine's (cpu), or what is free ({}; tandem plan: "
                      "unknown)",
                      device::module_names()))
      .bytes()
      .at_least(0)
      .at_most(base::kMaxBytes)
      .does_not_affect_results();
  options
      .option(arena_slack, "arena-slack", group,
              "share by which the arena of rollout and training is larger than what it has to hold, for holes between "
              "tensors; unset: 0.05, at least 8 MiB; on a GPU 256 MiB within 0.15, at least 32 MiB")
      .at_least(0.0)
      .at_most(1.0)
      .does_not_affect_results();
  options
      .option(
          offload_train, "offload-train", group,
          "keep on the host what only training needs: --offload-optimizer, --offload-reference, --offload-teacher and "
          "--offload-rm-model together")
      .does_not_affect_results();
  options
      .option(offload_optimizer, "offload-optimizer", group,
              "keep float32 master weights and AdamW's moments in pinned host memory; an update streams them through "
              "the device")
      .does_not_affect_results();
  options
      .option(offload_reference, "offload-reference", group,
              "keep the weights of the KL reference in pinned host memory; they come to the device to score")
      .does_not_affect_results();
  options
      .option(offload_teacher, "offload-teacher", group,
              "keep the weights of --opd-teacher-load in pinned host memory; they come to the device to score, one "
              "teacher after the other, and with --opd-loss-coef for the optimizer steps")
      .does_not_affect_results();
  options
      .option(offload_rm_model, "offload-rm-model", group,
              "keep the weights of --rm-model in pinned host memory; they come to the device to score")
      .does_not_affect_results();
  options
      .option(fit, "fit", group,
              "where the memory plan would refuse the run: take the cheapest change of flags that the refusal names, "
              "report it, and keep it in config.toml; for runs of one process")
      .does_not_affect_results();
  options
      .option(debug_unmap_idle_view, "debug-unmap-idle-view", group,
              "unmap memory that a phase does not own, so that a stray access ends the run; costs time at each phase "
              "change")
      .does_not_affect_results();
}

}  // namespace tandem::config
