// Real engines, each with a copy of the weights, sample one rollout on ranks that are threads: the bits are those of
// one engine, though each decodes other groups beside each other.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "report/sample_file.h"
#include "rollout/rollout_plan.h"
#include "run/model_session.h"
#include "run/rollout_phase.h"
#include "tests/run/thread_mesh.h"

namespace tandem::run {
namespace {

constexpr int64_t kGroups = 7, kCompletions = 3;

std::vector<PromptLine> prompts() {
  std::vector<PromptLine> lines;
  for (int32_t i = 0; i < kGroups; ++i) {
    std::vector<int32_t> tokens;
    for (int32_t t = 0; t < 3 + 5 * (i % 3); ++t) tokens.push_back(40 + (7 * i + 3 * t) % 90);
    lines.push_back({.record = {}, .prompt = rl::make_prompt(std::move(tokens))});
  }
  return lines;
}

// What the rank of the mesh has after each of two rollouts.
std::vector<std::string> sampled(ModelSession& session, mesh::Mesh& mesh) {
  at::set_num_threads(1);
  config::RolloutOptions options;
  // Few enough blocks that groups wait, and are taken by whoever has room.
  rollout::EngineConfig config = session.engine_config(options, 24);
  config.limits.max_running = 6;
  const auto model = session.make_model();
  const auto engine = rollout::make_engine(config, *model);
  const std::vector<PromptLine> lines = prompts();
  RolloutPhase phase(*engine, session.text(), mesh);
  report::Report report;
  std::vector<std::string> results;
  for (uint64_t i = 0; i < 2; ++i) {
    RolloutRequest request;
    for (const PromptLine& line : lines) request.prompts.push_back(&line);
    request.n_samples_per_prompt = kCompletions;
    request.sampling.max_new_tokens = 24;
    request.sampling.max_context_tokens = 64;
    request.sampling.top_p = 0.95;
    request.first_sample_id = i * kGroups * kCompletions;
    request.title = "rollout";
    const Rollout rollout = phase.run(request, nullptr, report).value();
    std::string text;
    for (const rl::Sample& sample : rollout.samples)
      text += base::dump_json(report::sample_record(sample, nullptr, report::SampleDetail::kFull)) + "\n";
    results.push_back(text);
  }
  return results;
}

TEST(RankEngines, SampleTheBitsOfOneEngine) {
  std::vector<std::unique_ptr<ModelSession>> sessions;
  for (int rank = 0; rank < 3; ++rank) {
    config::ModelOptions options;
    options.hf_checkpoint = "tests/golden/models/qwen3-tied";
    sessions.push_back(std::make_unique<ModelSession>(options));
    sessions.back()->load_weights();
  }
  const std::unique_ptr<mesh::Mesh> solo = mesh::solo_mesh();
  const std::vector<std::string> alone = sampled(*sessions[0], *solo);
  ASSERT_NE(alone[0], alone[1]);
  for (int num_ranks = 2; num_ranks <= 3; ++num_ranks) {
    ThreadRanks ranks(num_ranks);
    std::vector<std::vector<std::string>> results(static_cast<size_t>(num_ranks));
    ranks.run([&](mesh::Mesh& mesh) {
      const auto rank = static_cast<size_t>(mesh.rank());
      results[rank] = sampled(*sessions[rank], mesh);
    });
    for (const std::vector<std::string>& of_rank : results) EXPECT_EQ(of_rank, alone) << num_ranks;
  }
}

}  // namespace
}  // namespace tandem::run
