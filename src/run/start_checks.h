// What `tandem train` checks once it knows its model and data, and before it reads weights or writes a byte.
#pragma once

#include "run/prompt_set.h"
#include "run/run_space.h"
#include "run/session.h"
#include "run/train_config.h"

namespace tandem::run {

// UserError: a stop token that the model has not, a reference of another shape, a dump's name without {rollout_id}.
// Says which prompts --num-epoch leaves out.
void check_start(const TrainConfig& config, const Session& session, const PromptSet& prompts);

// The room that a run takes which has `begin` of its rollouts behind it.
RunSpace run_space(const Session& session, const TrainConfig& config, const PromptSet& prompts, int64_t num_rollouts,
                   int64_t begin);

}  // namespace tandem::run
