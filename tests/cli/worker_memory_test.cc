// Compares the memory of a rollout worker with its plan.
#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "base/options.h"
#include "device/registry.h"
#include "plan/plan.h"
#include "sampling/served_rollout.h"
#include "session/own_engine.h"
#include "tests/cli/planned_memory.h"
#include "weights/sync.h"

namespace tandem::cli {
namespace {

config::TrainConfig config_of(Arguments words) {
  std::erase(words, "--colocate");
  words.erase(words.begin());
  words.insert(words.end(), {"--rollout-num-gpus", "1"});
  config::TrainConfig config;
  base::Options options;
  config.visit(options);
  options.parse(words);
  config.check();
  return config;
}

void send(const weights::WeightStore& from, weights::WeightStore& to) {
  weights::WeightReceiver receiver(to);
  weights::send_weights(from, 10'000, [&](const weights::WeightPiece& piece, std::span<const std::byte> bytes) {
    receiver.take(piece, [&](std::span<std::byte> into) { std::memcpy(into.data(), bytes.data(), into.size()); });
  });
  receiver.finish(from.version());
}

// Does what such a process does, in its order (sampling/serve_rollouts.cc); returns the line of its memory.
base::Json serve_one_rollout(const config::TrainConfig& config) {
  session::ModelSession trainer(config.model, config.lora), session(config.model, config.lora);
  trainer.load_weights();
  const session::PromptSet prompts = session::load_all_prompts(config.reward.data(config.data), session.text());
  const plan::TrainPlan plan = plan::plan_or_refuse(
      config, session.config(), {.longest_prompt = prompts.longest_tokens, .role = plan::Role::kRollout},
      plan::device_memory(config, device::device_bytes(session.device())));
  session::RunMemory memory(config.memory, plan, session.device());
  const sampling::Evaluation evaluation(config.eval, config.data, config.reward, {});
  sampling::Rewards rewards(config.reward, config.dynamic_sampling, session::reward_context(config.data, {}),
                            evaluation);
  session.allocate_weights();
  memory.add_persistent(memory::Tag::kWeights, session.bytes());
  memory.enter(memory::Phase::kRollout);
  send(trainer.base(), session.base());
  if (config.lora.rank) send(trainer.trained(), session.trained());
  session::OwnEngine engine(config, session, plan, memory);
  const int64_t num_groups = config.rollout_batch_size;
  sampling::ServedRollout rollout({.n_samples_per_prompt = config.rollout.n_samples_per_prompt,
                                   .sampling = config.rollout.sampling(),
                                   .groups_at_once = num_groups},
                                  {.config = config,
                                   .evaluation = evaluation,
                                   .context_tokens = session.config().max_positions,
                                   .engine = engine.engine(),
                                   .text = session.text(),
                                   .rewards = rewards});
  EXPECT_GT(rollout.num_to_pull(), 0);
  for (int64_t i = 0; i < num_groups; ++i)
    rollout.add({.rollout = 0, .index = static_cast<uint64_t>(i), .line = prompts.prompts[static_cast<size_t>(i)]});
  bool has_answered = false;
  while (rollout.has_work()) has_answered |= rollout.advance().has_value();
  EXPECT_TRUE(has_answered);
  rollout.close();
  return base::parse_json(memory.timeline(0).back(), "the timeline");
}

TEST(WorkerMemory, NoTagIsAboveThePlanAndThePlanIsNear) {
  const base::TemporaryDirectory folder;
  for (const Arguments& more :
       {Arguments{"--dtype", "float32"}, {"--dtype", "bfloat16"}, {"--dtype", "bfloat16", "--lora-rank", "16"}}) {
    const base::Json step = serve_one_rollout(config_of(memory_arguments(folder, folder / "run", more)));
    expect_phases_as_planned(step, {"load", "rollout"}, "worker, " + more[1] + (more.size() > 2 ? " LoRA" : ""),
                             /*is_bound=*/false);
    for (const char* tag : {"gradients", "master", "moments", "head"})
      EXPECT_EQ(bytes(step["phases"]["rollout"], "most", tag), 0) << tag;
  }
}

}  // namespace
}  // namespace tandem::cli
