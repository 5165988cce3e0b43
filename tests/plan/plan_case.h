// Configurations whose memory is planned: small ones, and random ones that a model might have.
#pragma once

#include <algorithm>
#include <random>

#include "plan/plan.h"
#include "tests/model/small_models.h"

namespace tandem::plan {

constexpr int64_t kGiB = int64_t{1} << 30;

// One thread computes, so that nothing depends on the machine.
inline config::TrainConfig tiny_config() {
  config::TrainConfig config;
  config.model.num_threads = 1;
  config.rollout_batch_size = 4;
  config.rollout.n_samples_per_prompt = 2;
  config.rollout.max_response_len = 32;
  config.rollout.limits.max_batch_tokens = 64;
  config.rollout.limits.max_running = 8;
  config.optimizer.batch.max_tokens_per_gpu = 128;
  config.optimizer.batch.logprob_chunk_rows = 16;
  config.memory.train_memory_margin_bytes = 0;
  config.memory.gpu_memory_utilization = 1.0;
  return config;
}

struct PlanCase {
  config::TrainConfig config;
  model::ModelConfig model;
  PlanInputs facts;
};

inline PlanCase random_case(std::mt19937& random) {
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  PlanCase drawn{tiny_config(), model::tiny_config(), {}};
  model::ModelConfig& model = drawn.model;
  model.num_kv_heads = between(1, 8);
  model.num_heads = model.num_kv_heads * between(1, 4);
  model.head_dim = 32 * between(1, 4);
  model.hidden = 64 * between(1, 40);
  model.mlp = 64 * between(1, 100);
  model.vocab = between(300, 160'000);
  model.num_layers = between(1, 40);
  model.max_positions = 32'768;
  model = model::in_family(model, model::kArchitectures[random() % model::kArchitectures.size()]);
  model.tied_embeddings = random() % 2 == 0;
  model.dtype = random() % 2 == 0 ? model::Dtype::kFloat32 : model::Dtype::kBFloat16;
  config::TrainConfig& config = drawn.config;
  config.model.device = random() % 2 == 0 ? "cpu" : "cuda";
  config.rollout_batch_size = between(1, 64);
  config.rollout.n_samples_per_prompt = between(1, 16);
  config.rollout.max_response_len = between(1, 2000);
  config.rollout.limits.max_batch_tokens = between(1, 4096);
  config.rollout.limits.max_running = between(1, 300);
  config.optimizer.batch.max_tokens_per_gpu = between(1, 20'000);
  config.optimizer.batch.logprob_chunk_rows = between(1, 3000);
  config.loss.use_kl_loss = random() % 2 == 0;
  config.loss.loss.kl_loss_coef = config.loss.use_kl_loss ? 0.01 : 0.0;
  config.loss.loss.entropy_coef = random() % 2 == 0 ? 0.01 : 0.0;
  config.optimizer.recompute_granularity = "full";
  config.optimizer.recompute_num_layers = between(1, model.num_layers);
  if (random() % 3 > 0) drawn.facts.longest_prompt = between(1, 1500);
  if (!drawn.facts.longest_prompt) config.data.max_prompt_len = between(1, 1500);
  return drawn;
}

}  // namespace tandem::plan
