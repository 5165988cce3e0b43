// The processes that score completions, as the flags ask for them: those of training, and where evaluations compare
// with another label or take another number, those of evaluations.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "config/data_options.h"
#include "config/reward_options.h"
#include "config/run_mode.h"
#include "text/graders.h"

namespace tandem::run {

class Evaluation;

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

class Rewards {
 public:
  // Starts the processes. UserError for a reward that cannot be used.
  Rewards(const config::RewardOptions& options, const RewardContext& context, const Evaluation& evaluation);

  text::Graders& of_training() { return training_; }
  text::Graders& of_evaluation() { return evaluation_ ? *evaluation_ : training_; }

 private:
  text::Graders training_;
  std::optional<text::Graders> evaluation_;
};

}  // namespace tandem::run
