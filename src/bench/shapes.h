// The shapes that `tandem bench --shape` names, as their published config.json has them. No torch.
#pragma once

#include <string_view>

#include "model/config.h"

namespace tandem::bench {

// A name of config::kBenchShapes. BugError for another.
model::ModelConfig bench_shape(std::string_view name);

}  // namespace tandem::bench
