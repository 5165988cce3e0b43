// Sets up the processes that run reward code, as the flags ask for them. No torch.
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

// The facts of a run that a reward is told.
struct RewardContext {
  std::string label_key, metadata_key;
  base::Json arguments = base::Json::object();  // values of all flags
  std::string output_path = "";                 // file for what user code prints; may be empty
};
RewardContext reward_context(const config::DataOptions& data,
                             const config::RunMode& mode);  // leaves the output path empty

// Returns the configuration of a process that runs the user's code: limits, interpreter and sandbox, and no reward yet.
reward::GraderConfig grader_config(const config::RewardOptions& options, const RewardContext& context);
// Returns the rewards' configuration; `options.line_types` holds the types that lines ask for.
reward::ScorerConfig scorer_config(const config::RewardOptions& options, const RewardContext& context);

// Returns the check of data lines against their built-in rewards: a line that its reward cannot read, such as malformed
// tests of --rm-type code, fails with every response. `data` are the options that the lines are read with.
CheckLines line_check(const config::RewardOptions& options, const config::DataOptions& data);

// Loads each function, in --rm-python, and connects to --rm-url, once, so that what is missing or wrong is found before
// weights are read and folders made. Throws UserError, also for a function that needs a column which one of `data` does
// not have, and EnvironmentError for a service that cannot be reached and a package that is missing.
void try_out_reward(const config::RewardOptions& options, const RewardContext& context,
                    const std::vector<const PromptSet*>& data);

// Prints what is added up to the reward, what pass@k counts, and which service is asked; nothing if there is no choice.
void print_rewards(const config::RewardOptions& options, report::Report& report);

}  // namespace tandem::session
