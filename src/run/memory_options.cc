#include "run/memory_options.h"

namespace tandem::run {

void MemoryOptions::visit(base::Options& options) {
  const char* const group = "memory plan";
  options
      .option(gpu_memory_utilization, "gpu-memory-utilization", group,
              "keys and values take what is left of this share of the device while sampling")
      .greater_than(0.0)
      .at_most(1.0)
      .changes_no_number();
  options
      .option(train_memory_margin_bytes, "train-memory-margin-bytes", group,
              "bytes that keys and values leave free while training")
      .at_least(0)
      .changes_no_number();
  options
      .option(device_memory_bytes, "device-memory-bytes", group,
              "bytes of device memory to plan for; 0: the machine's (cpu), unknown (cuda)")
      .at_least(0)
      .changes_no_number();
}

}  // namespace tandem::run
