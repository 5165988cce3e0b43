// The memory plan of a training run as people read it, and as JSON.
#pragma once

#include <string>

#include "base/json.h"
#include "plan/plan.h"

namespace tandem::plan {

// A table of tags by phases and the sentences below it; lines without a break at the end.
std::string plan_text(const TrainPlan& plan, const model::ModelConfig& model);

// The same in bytes. Keys and their order stay; "ranks" has one entry, since all ranks take the same.
base::Json plan_json(const TrainPlan& plan, const model::ModelConfig& model);

}  // namespace tandem::plan
