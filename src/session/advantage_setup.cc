#include "session/advantage_setup.h"

namespace tandem::session {

reward::AdvantageConfig advantage_config(const std::string& function, const config::RewardOptions& reward,
                                         const RewardContext& context) {
  const reward::GraderConfig code = grader_config(reward, context);
  reward::AdvantageConfig config;
  config.worker = code.worker;
  config.function = function;
  config.metadata_key = code.metadata_key;
  config.arguments = code.arguments;
  config.python = code.python;
  config.output_path = code.output_path;
  config.deadline_s = code.limits.deadline_s;
  config.memory_bytes = code.limits.memory_bytes;
  config.sandbox = code.sandbox;
  config.warn_of_missing_layers = false;  // reported by the processes of the reward
  return config;
}

void try_out_advantages(const std::string& function, const config::RewardOptions& reward,
                        const RewardContext& context) {
  if (function.empty()) return;
  reward::AdvantageConfig config = advantage_config(function, reward, context);
  config.output_path.clear();
  const reward::AdvantageFunction tried(config);
}

}  // namespace tandem::session
