// Changes that make a configuration fit into the device's memory. They are found by planning again with each of them,
// not guessed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace tandem::plan {

// A change moves its flags as far as they must go and no further.
struct PlanChange {
  std::string flags;      // "--recompute-granularity full --recompute-num-layers 12"
  double slowdown = 0.0;  // of a step: 0.05 is 5 % longer; negative: faster. An estimate, docs/MEMORY.md has the table
  bool changes_results = false;  // not only where and when numbers are computed
  int64_t peak_bytes = 0;        // of the plan with it
  int64_t kv_completions = 0;    // that its keys and values hold at once
  config::TrainConfig config;    // with it,
  model::ModelConfig model;      // and the model as that reads it
};

// The `count` cheapest changes that make the plan fit come cheapest first: changes that cost time alone before changes
// of results, less time before more. A change moves one flag where that is enough, else two, three or all that there
// are; where few flags help, two share what is missing. The list is empty where nothing fits. It is a BugError to ask
// for changes of a plan that fits already.
std::vector<PlanChange> cheapest_changes(const config::TrainConfig& config, const model::ModelConfig& model,
                                         const PlanInputs& facts, const DeviceMemory& device, size_t count = 3);

// The text reads "--max-tokens-per-gpu 2048 (7.93 GiB, about 4 % slower, KV for 12 completions)".
std::string to_string(const PlanChange& change);

std::string gib_text(int64_t bytes);  // "7.93 GiB"

}  // namespace tandem::plan
