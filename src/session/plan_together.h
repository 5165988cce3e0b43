// Plans the memory of ranks in one tensor-parallel group: all of them get as many KV blocks, because their engines
// decide alike what is preempted.
#pragma once

#include "config/train_config.h"
#include "device/communicator.h"
#include "plan/plan.h"

namespace tandem::session {

// Returns plan::plan_or_refuse() of this rank's part on its own device, with no more KV blocks than the rank that has
// the least room for them. All ranks call it together; `hosts` connects their hosts. Throws UserError if the plan does
// not fit here, and EnvironmentError if it does not fit on another rank.
plan::TrainPlan plan_together(const config::TrainConfig& config, const model::ModelConfig& model,
                              const plan::PlanInputs& facts, const plan::DeviceMemory& device,
                              device::Communicator& hosts);

}  // namespace tandem::session
