#include "session/read_reward_model.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/hub_name.h"
#include "model/reward_model.h"

namespace tandem::session {

std::optional<model::ModelConfig> read_reward_model(const config::RewardOptions& options,
                                                    const model::ModelConfig& policy) {
  const std::string& directory = options.rm_model;
  if (directory.empty()) return std::nullopt;
  base::check_directory(
      directory, "--rm-model " + directory,
      "name the Hugging Face directory of a reward model" + base::hub_remedy(directory, base::HubKind::kModel));
  model::ModelConfig config = model::read_reward_model_config(directory);
  config.dtype = policy.dtype;
  return model::shard_of(config, {.rank = policy.shard.rank, .size = policy.shard.size});
}

}  // namespace tandem::session
