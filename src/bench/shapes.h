// The shapes that `tandem bench --shape` names, as their published config.json has them. No torch.
#pragma once

#include <string_view>

#include "model/config.h"

namespace tandem::bench {

// Returns the shape that has a name of config::kBenchShapes. Throws BugError for another name.
model::ModelConfig bench_shape(std::string_view name);

}  // namespace tandem::bench
