#include "run/grader_setup.h"

namespace tandem::run {

RewardContext reward_context(const config::DataOptions& data, const config::RunMode& mode) {
  return {.label_key = data.lines.label_key, .metadata_key = data.lines.metadata_key, .arguments = mode.values};
}

text::GraderConfig grader_config(const config::RewardOptions& options, const RewardContext& context) {
  text::GraderConfig config;
  config.worker = text::default_worker_config();
  config.rm_type = options.rm_type.value_or("");
  config.custom_rm_path = options.custom_rm_path;
  config.reward_key = options.reward_key;
  config.group_rm = options.group_rm;
  config.label_key = context.label_key;
  config.metadata_key = context.metadata_key;
  config.arguments = context.arguments;
  config.python = options.python;
  config.output_path = context.output_path;
  config.limits = options.limits;
  config.sandbox = options.sandbox == "off"       ? text::Sandbox::kOff
                   : options.sandbox == "require" ? text::Sandbox::kRequire
                                                  : text::Sandbox::kAuto;
  return config;
}

void try_out_reward(const config::RewardOptions& options, const RewardContext& context) {
  if (options.custom_rm_path.empty() && options.python.empty()) return;
  text::GraderConfig config = grader_config(options, context);
  config.output_path.clear();
  config.limits.num_processes = 1;
  config.warn_of_missing_layers = false;  // the run's own graders say it
  const text::Graders graders(config);
}

}  // namespace tandem::run
