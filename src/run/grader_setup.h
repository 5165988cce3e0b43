// The processes that run reward code, as the flags ask for them. No torch.
#pragma once

#include <string>

#include "base/json.h"
#include "config/data_options.h"
#include "config/reward_options.h"
#include "config/run_mode.h"
#include "text/graders.h"

namespace tandem::run {

// What a reward is told of the run that it scores for.
struct RewardContext {
  std::string label_key, metadata_key;
  base::Json arguments = base::Json::object();  // the values of all flags
  std::string output_path = "";                 // where what user code prints goes; may be empty
};
RewardContext reward_context(const config::DataOptions& data, const config::RunMode& mode);  // without an output path

text::GraderConfig grader_config(const config::RewardOptions& options, const RewardContext& context);

// Loads --custom-rm-path, in --rm-python, once, so that a file or an interpreter that is missing or wrong is found
// before weights are read and folders made. UserError.
void try_out_reward(const config::RewardOptions& options, const RewardContext& context);

}  // namespace tandem::run
