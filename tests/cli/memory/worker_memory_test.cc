// Compares the memory of a rollout worker with its plan.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "device/registry.h"
#include "mesh/channel.h"
#include "options/options.h"
#include "plan/plan.h"
#include "rollout_worker/served_rollout.h"
#include "session/own_engine.h"
#include "tests/cli/memory/planned_memory.h"
#include "weights/sync.h"

namespace tandem::cli {
namespace {

config::TrainConfig config_of(Arguments words) {
  std::erase(words, "--colocate");
  words.erase(words.begin());
  words.insert(words.end(), {"--rollout-num-gpus", "1"});
  config::TrainConfig config;
  options::Options options;
  config.visit(options);
  options.parse(words);
  config.rollout.fill_in(config.model.device);
  config.check();
  return config;
}

void send(const weights::WeightStore& from, weights::WeightStore& to) {
  weights::WeightReceiver receiver(to);
  weights::send_weights(from, 10'000, [&](const weights::WeightPiece& piece, std::span<const std::byte> bytes) {
    receiver.take(piece, bytes);
  });
  receiver.finish(from.version());
}

// Does what such a process does, in its order (rollout_worker/serve_rollouts.cc); returns the line of its memory.
base::Json serve_one_rollout(const config::TrainConfig& config) {
  session::ModelSession trainer(config.model, config.lora, config.optimizer),
      session(config.model, config.lora, config.optimizer);
  trainer.load_weights();
  const session::PromptSet prompts = session::load_all_prompts(config.reward.data(config.data), session.text());
  const plan::TrainPlan plan = plan::plan_or_refuse(
      config, session.config(), {.longest_prompt = prompts.longest_tokens, .role = plan::Role::kRollout},
      plan::device_memory(config, device::device_bytes(session.device())));
  session::RunMemory memory(config.memory, plan, session.device());
  const evaluation::Evaluation evaluation(config.eval, config.data, config.reward, {});
  evaluation::Rewards rewards(config.reward, config.dynamic_sampling, session::reward_context(config.data, {}),
                              evaluation);
  session.allocate_weights();
  memory.add_persistent(memory::Tag::kWeights, session.bytes());
  memory.enter(memory::Phase::kRollout);
  send(trainer.base(), session.base());
  if (config.lora.rank) send(trainer.trained(), session.trained());
  session::OwnEngine engine(config, session, plan, memory);
  const int64_t num_groups = config.rollout_batch_size, n = config.rollout.n_samples_per_prompt;
  std::array<int, 2> ends = {};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  mesh::Channel worker(mesh::OwnedDescriptor(ends[0]), 20.0), rank0(mesh::OwnedDescriptor(ends[1]), 20.0);
  rollout_worker::ServedRollout rollout(
      {.n_samples_per_prompt = n, .sampling = config.rollout.sampling(), .samples_at_once = num_groups * n},
      {.config = config, .evaluation = evaluation, .model = session.config(), .rewards = rewards}, engine.engine(),
      session.text(), worker, /*still_since=*/std::nullopt);
  for (uint64_t i = 0; i < static_cast<uint64_t>(num_groups); ++i) {
    sampling::LendSamples loan = {
        .rollout = 0, .key = i, .group = i, .first = 0, .count = static_cast<uint64_t>(n), .line = prompts.prompts[i]};
    rollout.client.take(loan);
  }
  for (int64_t num_graded = 0; num_graded < num_groups;) {
    rollout.client.work();
    while (const std::optional<std::string> frame = rank0.receive(0.0)) {
      sampling::Message message = sampling::message_of(*frame);
      if (auto* const sampled = std::get_if<sampling::Sampled>(&message)) {
        const uint64_t group = sampled->key;
        sampling::LendGrading loan = {.rollout = 0,
                                      .key = static_cast<uint64_t>(num_groups) + group,
                                      .group = group,
                                      .line = prompts.prompts[group],
                                      .members = std::move(sampled->members)};
        rollout.client.take(loan);
      } else {
        num_graded += std::holds_alternative<sampling::Graded>(message) ? 1 : 0;
      }
    }
  }
  rollout.sampler.abort_all();
  return base::parse_json(memory.timeline(0).back(), "the timeline");
}

// On an NPU these are asked where one is pretended (tests/pretend_device).
class WorkerMemory : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Devices, WorkerMemory, testing::Values("cpu", "npu"),
                         [](const auto& info) { return info.param; });

// So there is one model in the process, that of the engine. A public report (verl #4229) has a second one in a worker
// on NPUs.
TEST_P(WorkerMemory, NoTagIsAboveThePlanAndThePlanIsNear) {
  if (device::num_devices(GetParam()) == 0)
    GTEST_SKIP() << "no module for --device " << GetParam() << "; build it with make " << GetParam();
  const base::TemporaryDirectory folder;
  for (const Arguments& more :
       {Arguments{"--dtype", "float32"}, {"--dtype", "bfloat16"}, {"--dtype", "bfloat16", "--lora-rank", "16"}}) {
    Arguments words = memory_arguments(folder, folder / "run", more);
    words.insert(words.end(), {"--device", GetParam()});
    const base::Json step = serve_one_rollout(config_of(words));
    expect_phases_as_planned(step, {"load", "rollout"}, "worker, " + more[1] + (more.size() > 2 ? " LoRA" : ""),
                             /*is_bound=*/false);
    for (const char* tag : {"gradients", "master", "moments", "head"})
      EXPECT_EQ(bytes(step["phases"]["rollout"], "most", tag), 0) << tag;
  }
}

}  // namespace
}  // namespace tandem::cli
