#include "run/read_model.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"

namespace tandem::run {

model::ModelConfig read_model(const config::ModelOptions& options) {
  TANDEM_USER_CHECK(base::directory_exists(options.hf_checkpoint),
                    fmt::format("--hf-checkpoint {}: no such directory; name a folder with config.json, "
                                "model.safetensors and tokenizer.json",
                                options.hf_checkpoint));
  model::ModelConfig config = model::read_model_config(options.hf_checkpoint);
  if (options.dtype == "float32") config.dtype = model::Dtype::kFloat32;
  if (options.dtype == "bfloat16") config.dtype = model::Dtype::kBFloat16;
  return config;
}

void check_stop_tokens(const config::RolloutOptions& options, const model::ModelConfig& config) {
  for (const int64_t id : options.stop_token_ids) {
    TANDEM_USER_CHECK(id >= 0 && id < config.vocab,
                      fmt::format("--rollout-stop-token-ids {}: the model has no such token, its ids are 0 to {}", id,
                                  config.vocab - 1));
  }
}

}  // namespace tandem::run
