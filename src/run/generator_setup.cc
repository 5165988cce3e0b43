#include "run/generator_setup.h"

namespace tandem::run {

text::GeneratorConfig generator_config(const config::CustomGenerateOptions& options,
                                       const config::RewardOptions& reward, const std::string& model_directory,
                                       const RewardContext& context) {
  const text::GraderConfig code = grader_config(reward, context);
  text::GeneratorConfig config;
  config.worker = code.worker;
  config.function = options.function;
  config.model_directory = model_directory;
  config.metadata_key = code.metadata_key;
  config.arguments = code.arguments;
  config.python = code.python;
  config.output_path = code.output_path;
  config.limits = options.limits;
  config.memory_bytes = code.limits.memory_bytes;
  config.sandbox = code.sandbox;
  config.warn_of_missing_layers = false;  // the processes of the reward say it
  return config;
}

void try_out_generation(const config::CustomGenerateOptions& options, const config::RewardOptions& reward,
                        const std::string& model_directory, const RewardContext& context) {
  if (!options.is_on()) return;
  text::GeneratorConfig config = generator_config(options, reward, model_directory, context);
  config.output_path.clear();
  const text::Generators tried(config);
}

}  // namespace tandem::run
