// Tests that guessed tokens save steps and change no bit: tokens, log-probs of both kinds, reasons.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "tests/rollout/ahead_ops.h"
#include "tests/rollout/engine_fixture.h"

namespace tandem::rollout {
namespace {

// Draws groups of a model that repeats itself: low temperatures, and samples of a group that are alike.
struct RepetitiveMix {
  EngineConfig engine;
  std::vector<GroupRequest> requests;

  explicit RepetitiveMix(uint32_t seed) {
    std::mt19937 random(seed);
    const auto below = [&random](uint64_t n) { return static_cast<int64_t>(random() % n); };
    for (int t = 0; t < 64; ++t) engine.token_bytes.push_back({static_cast<char>('a' + t % 26)});
    engine.limits.max_draft_tokens = 1 + below(15);
    engine.limits.max_running = 1 + below(12);
    engine.limits.max_batch_tokens = 4 + below(60);
    engine.num_kv_blocks = 10 + below(24);  // the longest sequence has 140 tokens: 9 blocks
    engine.lookahead = below(2);
    engine.record_steps = below(2) == 0;
    for (int64_t g = 1 + below(3); g > 0; --g) {
      const int64_t lengths[] = {1, 5, 15, 16, 17, 40};
      GroupRequest request = request_of(static_cast<uint64_t>(g), lengths[below(6)], 1 + below(4), 1 + below(100));
      const double temperatures[] = {0.0, 0.1, 0.3, 0.6};
      request.sampling.temperature = temperatures[below(4)];
      if (below(3) == 0) request.sampling.top_p = 0.9;
      if (below(3) == 0) request.sampling.top_k = 1 + below(4);
      if (below(4) == 0) request.sampling.min_p = 0.1;
      request.sampling.ignore_eos = below(3) != 0;
      if (below(3) == 0) request.sampling.stop_token_ids = {static_cast<int32_t>(below(64))};
      if (below(3) == 0) request.sampling.stop = {std::string(2, static_cast<char>('a' + below(26))), "abc"};
      request.sampling.seed = random() % 3;
      if (below(3) == 0) {
        for (size_t i = 0; i < request.sample_ids.size(); ++i) request.budgets.push_back(below(40));
      }
      requests.push_back(request);
    }
  }
};

TEST(Drafts, ChangeNoBitOfACompletion) {
  const AheadOps ahead(test_ops());
  model::ModelConfig config = model::small_config(/*num_layers=*/2);
  config.vocab = 64;
  config.eos_token_ids = {1};
  const TestModel on_ahead = model::random_model(config, ahead);
  const TestModel on_host = model::random_model(config, test_ops());
  EngineStats total;
  int64_t num_tokens = 0;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const RepetitiveMix mix(seed);
    EngineConfig plain;
    plain.token_bytes = mix.engine.token_bytes;
    const std::unique_ptr<Engine> reference = make_engine(plain, *on_host.model);
    const std::unique_ptr<Engine> engine = make_engine(mix.engine, *on_ahead.model);
    for (const GroupRequest& request : mix.requests) {
      reference->add(request);
      engine->add(request);
    }
    const std::map<uint64_t, rl::Group> expected = finish_all(*reference), groups = finish_all(*engine);
    ASSERT_EQ(groups.size(), expected.size());
    for (const auto& [id, group] : groups) {
      SCOPED_TRACE(testing::Message() << "group " << id);
      expect_same_group(group, expected.at(id));
      for (const rl::Completion& completion : group.completions) num_tokens += std::ssize(completion.tokens);
    }
    if (HasFailure()) return;
    add(engine->stats(), total);
  }
  std::printf("[   info   ] %lld tokens in %lld forwards, %lld of %lld drafts right\n",
              static_cast<long long>(num_tokens), static_cast<long long>(total.forwards),
              static_cast<long long>(total.right_drafts), static_cast<long long>(total.draft_tokens));
  EXPECT_GT(total.right_drafts, 300);
  EXPECT_GT(total.draft_tokens - total.right_drafts, 300);
  EXPECT_GT(total.preemptions, 0);
}

// A greedy completion of a small model runs in a circle.
TEST(Drafts, SaveStepsWhereTextRepeatsItself) {
  for (const int64_t lookahead : {0, 1}) {
    SCOPED_TRACE(testing::Message() << "lookahead " << lookahead);
    const AheadOps ops(test_ops());
    model::ModelConfig model_config = model::small_config(/*num_layers=*/1);
    model_config.vocab = 64;
    const TestModel m = model::random_model(model_config, ops);
    GroupRequest request = request_of(1, 8, 1, 200);
    request.sampling.temperature = 0.0;
    EngineConfig config;
    config.lookahead = lookahead;
    const rl::Group expected = run_alone(*m.model, request, config);
    config.limits.max_draft_tokens = 15;
    const std::unique_ptr<Engine> engine = make_engine(config, *m.model);
    engine->add(request);
    expect_same_group(finish_all(*engine).at(1), expected);
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.generated_tokens, 200);
    EXPECT_LT(stats.forwards, 100);
    EXPECT_EQ(stats.forwards, 200 - stats.right_drafts);
    EXPECT_LE(stats.right_drafts, stats.draft_tokens);
    EXPECT_GT(stats.draft_steps, 0);
    EXPECT_EQ(stats.wasted_rows, 0);
    EXPECT_GT(ops.num_replays(), 0) << "steps with drafts are recorded";
  }
}

TEST(Drafts, AreNotMadeWhereManySequencesRun) {
  const TestModel m = make_small_model(at::kFloat);
  EngineConfig config;
  config.limits.max_draft_tokens = 15;
  const std::unique_ptr<Engine> engine = make_engine(config, *m.model);
  GroupRequest request = request_of(1, 8, kMostDraftRows, 60);
  request.sampling.temperature = 0.0;
  engine->add(request);
  finish_all(*engine);
  EXPECT_EQ(engine->stats().draft_tokens, 0);
}

}  // namespace
}  // namespace tandem::rollout
