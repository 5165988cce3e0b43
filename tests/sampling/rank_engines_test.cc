// Real engines, each with a copy of the weights, sample one rollout on ranks that are threads: the bits are those of
// one engine, though each decodes other groups beside each other.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "base/files.h"
#include "evaluation/evaluation.h"
#include "evaluation/rewards.h"
#include "report/sample_file.h"
#include "rollout/rollout_plan.h"
#include "sampling/rollout_phase.h"
#include "session/model_session.h"
#include "tests/base/temporary_directory.h"
#include "tests/sampling/thread_mesh.h"

namespace tandem::sampling {
namespace {

constexpr int64_t kGroups = 7, kCompletions = 3;

std::vector<session::PromptLine> prompts() {
  std::vector<session::PromptLine> lines;
  for (int32_t i = 0; i < kGroups; ++i) {
    std::vector<int32_t> tokens;
    for (int32_t t = 0; t < 3 + 5 * (i % 3); ++t) tokens.push_back(40 + (7 * i + 3 * t) % 90);
    lines.push_back({.record = {}, .prompt = rl::make_prompt(std::move(tokens))});
  }
  return lines;
}

// Returns the samples that the rank of the mesh has after each of two rollouts.
std::vector<std::string> sampled(session::ModelSession& session, mesh::Mesh& mesh) {
  at::set_num_threads(1);
  config::RolloutOptions options;
  // Few enough blocks that groups wait, and are taken by whoever has room.
  rollout::EngineConfig config = session.engine_config(options, 24);
  config.limits.max_running = 6;
  const auto model = session.make_model();
  const auto engine = rollout::make_engine(config, *model);
  const std::vector<session::PromptLine> lines = prompts();
  RolloutPhase phase(*engine, session.text(), mesh, LinkSettings());
  report::Report report;
  std::vector<std::string> results;
  for (uint64_t i = 0; i < 2; ++i) {
    RolloutRequest request;
    request.is_graded = false;
    for (const session::PromptLine& line : lines) request.prompts.push_back(&line);
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

std::vector<std::unique_ptr<session::ModelSession>> loaded_sessions(int count) {
  std::vector<std::unique_ptr<session::ModelSession>> sessions;
  for (int rank = 0; rank < count; ++rank) {
    config::ModelOptions options;
    options.hf_checkpoint = "tests/golden/models/qwen3-tied";
    sessions.push_back(std::make_unique<session::ModelSession>(options));
    sessions.back()->load_weights();
  }
  return sessions;
}

TEST(RankEngines, SampleTheBitsOfOneEngine) {
  const std::vector<std::unique_ptr<session::ModelSession>> sessions = loaded_sessions(3);
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

// The numbers of an evaluation, in which a grading may fail, on the rank of the mesh.
std::vector<report::Metrics> evaluated(session::ModelSession& session, mesh::Mesh& mesh, const std::string& reward) {
  at::set_num_threads(1);
  config::EvalOptions eval;
  eval.eval_prompt_data = {"math", "tests/golden/prompts/math_small.jsonl", "again",
                           "tests/golden/prompts/math_small.jsonl@[0:3]"};
  eval.n_samples_per_eval_prompt = 2;
  eval.max_response_len = 4;
  config::RewardOptions options;
  options.custom_rm_path = {reward};
  const config::DataOptions data;
  const evaluation::Evaluation evaluation(eval, {}, data, options, session.text());
  const evaluation::EvaluationRewards rewards(evaluation, {});
  const auto model = session.make_model();
  const auto engine = rollout::make_engine(session.engine_config({}, 64), *model);
  RolloutPhase phase(*engine, session.text(), mesh, LinkSettings());
  report::Report report;
  std::vector<report::Metrics> metrics;
  const auto results = evaluation.run(phase, rewards.of_sets(), std::nullopt, nullptr, report);
  for (const evaluation::Evaluation::Result& result : results.value()) metrics.push_back(result.metrics);
  return metrics;
}

TEST(RankEngines, EvaluateToTheNumbersOfOneEngine) {
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "reward.py",
                           "def reward(completions, **kwargs):\n"
                           "    return [1.0 / (len(c[0]['content']) % 5) for c in completions]\n");
  const std::vector<std::unique_ptr<session::ModelSession>> sessions = loaded_sessions(2);
  const std::unique_ptr<mesh::Mesh> solo = mesh::solo_mesh();
  const std::vector<report::Metrics> alone = evaluated(*sessions[0], *solo, folder / "reward.py:reward");
  ASSERT_EQ(alone.size(), 2U);
  ASSERT_TRUE(alone[0].contains("eval/math"));
  std::vector<std::vector<report::Metrics>> results(2);
  ThreadRanks ranks(2);
  ranks.run([&](mesh::Mesh& mesh) {
    const auto rank = static_cast<size_t>(mesh.rank());
    results[rank] = evaluated(*sessions[rank], mesh, folder / "reward.py:reward");
  });
  for (const std::vector<report::Metrics>& of_rank : results) EXPECT_EQ(of_rank, alone);
}

}  // namespace
}  // namespace tandem::sampling
