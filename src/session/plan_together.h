// The plan of a rank that holds a model with others: all of them have as many blocks of keys and values, because their
// engines decide alike what is preempted.
#pragma once

#include "config/train_config.h"
#include "device/communicator.h"
#include "plan/plan.h"

namespace tandem::session {

// plan::plan_or_refuse() of this rank's part on its own device, with no more keys and values than the rank that has the
// least room for them. Called by all of them together; `hosts` connects their hosts. UserError where the plan does not
// fit here; EnvironmentError where it does not on another rank.
plan::TrainPlan plan_together(const config::TrainConfig& config, const model::ModelConfig& model,
                              const plan::PlanInputs& facts, const plan::DeviceMemory& device,
                              device::Communicator& hosts);

}  // namespace tandem::session
