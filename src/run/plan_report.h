// `tandem plan`: the memory plan of a training run, for people and as JSON. Needs config.json of the checkpoint alone.
#pragma once

#include <string>

#include "base/json.h"
#include "run/plan.h"
#include "run/run_mode.h"

namespace tandem::run {

// The options of `tandem train`, of which only --hf-checkpoint must be given.
struct PlanConfig {
  TrainConfig train;
  bool json = false;

  void visit(base::Options& options);
};

// A table of tags by phases in GiB and the sentences below it; lines without a break at the end.
std::string plan_text(const TrainPlan& plan, const model::ModelConfig& model);

// The same in bytes. Keys and their order stay; "ranks" has one entry a rank.
base::Json plan_json(const TrainPlan& plan, const model::ModelConfig& model);

// The verb. UserError when the plan does not fit, after it was printed.
int plan(const PlanConfig& config, const RunMode& mode);

}  // namespace tandem::run
