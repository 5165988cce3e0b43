#include "sampling/rollout_request.h"

namespace tandem::sampling {

std::optional<CustomGeneration> custom_generation(const config::CustomGenerateOptions& options,
                                                  const std::string& metadata_key, const model::ModelConfig& model,
                                                  reward::Generators* processes, bool is_evaluation) {
  if (!options.is_on()) return std::nullopt;
  return CustomGeneration{.processes = processes,
                          .function = options.function,
                          .metadata_key = metadata_key,
                          .context_tokens = model.max_positions,
                          .vocab = model.vocab,
                          .is_evaluation = is_evaluation};
}

}  // namespace tandem::sampling
