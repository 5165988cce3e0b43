// The processes that run reward code, as the flags ask for them. No torch.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "config/data_options.h"
#include "config/reward_options.h"
#include "config/run_mode.h"
#include "report/report.h"
#include "reward/scorer.h"
#include "session/prompt_set.h"

namespace tandem::session {

// What a reward is told of the run that it scores for.
struct RewardContext {
  std::string label_key, metadata_key;
  base::Json arguments = base::Json::object();  // the values of all flags
  std::string output_path = "";                 // where what user code prints goes; may be empty
};
RewardContext reward_context(const config::DataOptions& data, const config::RunMode& mode);  // without an output path

// Of a process that runs the user's code: limits, interpreter and sandbox, and no reward yet.
reward::GraderConfig grader_config(const config::RewardOptions& options, const RewardContext& context);
// `options.line_types` holds what lines ask for.
reward::ScorerConfig scorer_config(const config::RewardOptions& options, const RewardContext& context);

// Loads each function, in --rm-python, and connects to --rm-url, once, so that what is missing or wrong is found before
// weights are read and folders made. UserError, also for a function that needs a column which one of `data` has not,
// and EnvironmentError for a service that cannot be reached.
void try_out_reward(const config::RewardOptions& options, const RewardContext& context,
                    const std::vector<const PromptSet*>& data);

// Says what is added up to the reward, what pass@k counts, and which service is asked; nothing where there is nothing
// to choose.
void print_rewards(const config::RewardOptions& options, report::Report& report);

}  // namespace tandem::session
