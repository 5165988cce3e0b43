#include "session/generator_setup.h"

namespace tandem::session {
namespace {

constexpr int64_t kDescriptorsOfAgent = 8;

}  // namespace

reward::GeneratorConfig generator_config(const config::CustomGenerateOptions& options,
                                         const config::RewardOptions& reward, const std::string& model_directory,
                                         const RewardContext& context) {
  const reward::GraderConfig code = grader_config(reward, context);
  reward::GeneratorConfig config;
  config.worker = code.worker;
  config.function = options.function;
  config.model_directory = model_directory;
  config.metadata_key = code.metadata_key;
  config.arguments = code.arguments;
  config.python = code.python;
  config.output_path = code.output_path;
  config.limits = options.limits;
  config.endpoint = config.worker.loopback = options.endpoint;
  config.max_sequences = options.max_sequences;
  config.max_further_sequences = options.further_sequences();
  // A connection has a descriptor at each of its ends, and both are in the process.
  if (options.endpoint) config.worker.max_open_files += kDescriptorsOfAgent * options.limits.max_samples;
  config.memory_bytes = code.limits.memory_bytes;
  config.sandbox = code.sandbox;
  config.warn_of_missing_layers = false;  // reported by the processes of the reward
  return config;
}

void try_out_generation(const config::CustomGenerateOptions& options, const config::RewardOptions& reward,
                        const std::string& model_directory, const RewardContext& context) {
  if (!options.is_on()) return;
  reward::GeneratorConfig config = generator_config(options, reward, model_directory, context);
  config.output_path.clear();
  const reward::Generators tried(config);
}

}  // namespace tandem::session
