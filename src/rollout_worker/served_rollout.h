// A rollout in a rollout worker, made of rank 0's Open and the worker's own flags, processes and engine.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "config/train_config.h"
#include "evaluation/rewards.h"
#include "mesh/channel.h"
#include "model/config.h"
#include "rollout/engine.h"
#include "sampling/processes/messages.h"
#include "sampling/processes/pool_client.h"
#include "sampling/rollout_request.h"
#include "sampling/sampler.h"
#include "text/text_worker.h"

namespace tandem::rollout_worker {

struct WorkerParts {
  const config::TrainConfig& config;
  const evaluation::Evaluation& evaluation;
  const model::ModelConfig& model;
  evaluation::Rewards& rewards;
};

struct ServedRollout {
  // The engine has stood still since `still_since`, if it was paused. Throws EnvironmentError if rank 0 asks for what
  // these parts do not have.
  ServedRollout(const sampling::Open& open, const WorkerParts& parts, rollout::Engine& engine, text::TextWorker& text,
                mesh::Channel& rank0, std::optional<base::Clock::time_point> still_since);

  const uint64_t number;
  const sampling::RolloutRequest request;
  sampling::Sampler sampler;
  sampling::PoolClient client;
};

}  // namespace tandem::rollout_worker
