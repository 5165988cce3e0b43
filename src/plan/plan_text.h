// The memory plan of a training run as people read it, and as JSON.
#pragma once

#include <string>

#include "base/json.h"
#include "plan/plan.h"

namespace tandem::plan {

// The text is a table of tags by phases with sentences below it. Its last line has no line break.
std::string plan_text(const TrainPlan& plan, const model::ModelConfig& model);

// JSON says the same in bytes. Keys and their order stay; "ranks" has one entry, since all ranks take the same.
base::Json plan_json(const TrainPlan& plan, const model::ModelConfig& model);

}  // namespace tandem::plan
