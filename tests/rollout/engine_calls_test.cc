// Tests of the promise of each call of the engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "tandem/error.h"
#include "tests/rollout/ahead_ops.h"
#include "tests/rollout/engine_fixture.h"

namespace tandem::rollout {
namespace {

// Everything is promised alike where steps are recorded and run ahead of the host.
struct Ahead {
  int64_t lookahead;
  bool record_steps;
};

class EngineTest : public testing::TestWithParam<Ahead> {
 protected:
  TestModel make_model() const { return model::random_model(make_small_model(at::kFloat).config, ops_); }
  static EngineConfig config() {
    EngineConfig config;
    config.lookahead = GetParam().lookahead;
    config.record_steps = GetParam().record_steps;
    return config;
  }

 private:
  AheadOps ops_{test_ops()};
};

INSTANTIATE_TEST_SUITE_P(Ahead, EngineTest,
                         testing::Values(Ahead{0, false}, Ahead{0, true}, Ahead{1, false}, Ahead{1, true}),
                         [](const auto& info) {
                           return std::string(info.param.lookahead > 0 ? "ahead" : "inStep") +
                                  (info.param.record_steps ? "Recorded" : "");
                         });

// Expects that the first n tokens of both have the same bits.
void expect_prefix(const rl::Completion& part, const rl::Completion& whole) {
  ASSERT_LE(part.tokens.size(), whole.tokens.size());
  EXPECT_TRUE(std::equal(part.tokens.begin(), part.tokens.end(), whole.tokens.begin()));
  EXPECT_TRUE(std::equal(part.logprobs.begin(), part.logprobs.end(), whole.logprobs.begin()));
}

TEST_P(EngineTest, PrefillsAPromptOnceForAllSamplesOfAGroup) {
  const TestModel m = make_model();
  const std::unique_ptr<Engine> engine = make_engine(config(), *m.model);
  const GroupRequest request = request_of(1, 40, 8, 10);
  engine->add(request);
  EXPECT_EQ(finish_all(*engine).at(1).prompt, request.prompt) << "the same object, not a copy";
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.generated_tokens, 80);
  EXPECT_EQ(stats.prefill_tokens, 40);
  EXPECT_EQ(stats.shared_prompt_tokens, 7 * 40);
  EXPECT_EQ(stats.copies_on_write, 7);
  EXPECT_EQ(stats.forwards, 10);  // the prompt's forward draws the first tokens
  EXPECT_EQ(stats.peak_running, 8);
  EXPECT_EQ(stats.peak_blocks, 2 + 8 * 2);  // 49 tokens: two full blocks in common, two of its own for each sample
  engine->reset_stats();
  EXPECT_EQ(engine->stats().generated_tokens, 0);
  EXPECT_EQ(engine->stats().peak_blocks, 0);
}

TEST_P(EngineTest, GivesOutGroupsAsTheyFinish) {
  const TestModel m = make_model();
  const std::unique_ptr<Engine> engine = make_engine(config(), *m.model);
  engine->add(request_of(1, 5, 2, 40));
  engine->add(request_of(2, 5, 2, 4));
  ASSERT_EQ(engine->next_finished().value().group_id, 2U);
  EXPECT_EQ(engine->num_unfinished_groups(), 1);
  engine->add(request_of(3, 5, 2, 4));
  EXPECT_EQ(engine->next_finished().value().group_id, 3U);
  EXPECT_EQ(engine->next_finished().value().group_id, 1U);
  EXPECT_FALSE(engine->next_finished().has_value());
}

TEST_P(EngineTest, ReturnsPartialCompletionsOnAbort) {
  const TestModel m = make_model();
  const rl::Group whole = run_alone(*m.model, request_of(1, 20, 3, 30), config());
  const std::unique_ptr<Engine> engine = make_engine(config(), *m.model);
  engine->add(request_of(1, 20, 3, 30));
  engine->add(request_of(2, 20, 3, 30));
  for (int i = 0; i < 12; ++i) engine->step();
  engine->add(request_of(3, 20, 2, 30));
  engine->abort(1);
  engine->abort(77);  // the group is not there, or ended long ago
  const rl::Group partial = engine->next_finished().value();
  EXPECT_EQ(partial.group_id, 1U);
  ASSERT_EQ(partial.completions.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(partial.completions[i].tokens.size(), 12U);
    EXPECT_EQ(partial.completions[i].finish_reason, rl::FinishReason::kAbort);
    expect_prefix(partial.completions[i], whole.completions[i]);
  }
  engine->abort_all();
  EXPECT_EQ(engine->num_unfinished_groups(), 0);
  EXPECT_EQ(engine->next_finished().value().completions[0].tokens.size(), 12U);
  EXPECT_TRUE(engine->next_finished().value().completions[0].tokens.empty());
  EXPECT_FALSE(engine->step());
  // No trace of the group is left.
  engine->add(request_of(1, 20, 3, 30));
  expect_same_group(finish_all(*engine).at(1), whole);
}

TEST_P(EngineTest, ChangesWeightsOnlyWhileNoGroupIsInFlight) {
  const TestModel m = make_model();
  const std::unique_ptr<Engine> engine = make_engine(config(), *m.model);
  engine->add(request_of(1, 20, 2, 20));
  EXPECT_THROW(engine->update_weights(m.store->view()), BugError);
  finish_all(*engine);
  engine->update_weights(m.store->view());
}

TEST_P(EngineTest, EndsAtTheTokenThatCompletesAStopString) {
  const TestModel m = make_model();
  const rl::Completion whole = run_alone(*m.model, request_of(1, 20, 1, 40), config()).completions[0];
  EngineConfig config = EngineTest::config();  // token t is the letters xy of t = 8 x + y
  for (int t = 0; t < 60; ++t) {               // the last four tokens have no text
    config.token_bytes.push_back({static_cast<char>('a' + t / 8), static_cast<char>('A' + t % 8)});
  }
  std::string text;
  for (const int32_t token : whole.tokens) {
    if (token < 60) text += config.token_bytes[static_cast<size_t>(token)];
  }
  // The stop string begins in the middle of a token and ends in the middle of another.
  const std::string stop = text.substr(23, 4);
  const size_t end = text.find(stop) + stop.size();
  GroupRequest request = request_of(1, 20, 1, 40);
  request.sampling.stop = {"zzzz", stop};
  const rl::Completion stopped = run_alone(*m.model, request, config).completions[0];
  EXPECT_EQ(stopped.finish_reason, rl::FinishReason::kStop);
  expect_prefix(stopped, whole);
  size_t bytes = 0;
  size_t expected_tokens = 0;
  while (bytes < end) bytes += whole.tokens[expected_tokens++] < 60 ? 2 : 0;
  EXPECT_EQ(stopped.tokens.size(), expected_tokens);
  EXPECT_THROW(run_alone(*m.model, request, EngineTest::config()), BugError);  // there is no table of token bytes
}

TEST_P(EngineTest, EndsAtStopTokensUnlessTold) {
  const TestModel m = make_model();
  const rl::Completion whole = run_alone(*m.model, request_of(1, 20, 1, 40), config()).completions[0];
  EXPECT_EQ(whole.finish_reason, rl::FinishReason::kLength);
  GroupRequest request = request_of(1, 20, 1, 40);
  request.sampling.stop_token_ids = {whole.tokens[9]};
  EXPECT_EQ(run_alone(*m.model, request, config()).completions[0].tokens.size(), 40U);  // ignore_eos
  request.sampling.ignore_eos = false;
  const rl::Completion stopped = run_alone(*m.model, request, config()).completions[0];
  EXPECT_EQ(stopped.finish_reason, rl::FinishReason::kStop);
  expect_prefix(stopped, whole);
  const auto first_end = std::find_if(whole.tokens.begin(), whole.tokens.end(),
                                      [&whole](int32_t token) { return token == whole.tokens[9] || token == 1; });
  EXPECT_EQ(static_cast<int64_t>(stopped.tokens.size()), first_end - whole.tokens.begin() + 1);

  // Among many samples some meet the model's own EOS.
  GroupRequest many = request_of(1, 20, 60, 40);
  many.sampling.ignore_eos = false;
  int num_stopped = 0;
  for (const rl::Completion& completion : run_alone(*m.model, many, config()).completions) {
    const bool stop = completion.finish_reason == rl::FinishReason::kStop;
    EXPECT_EQ(stop, completion.tokens.back() == 1);
    EXPECT_EQ(std::count(completion.tokens.begin(), completion.tokens.end(), 1), stop ? 1 : 0);
    num_stopped += stop ? 1 : 0;
  }
  EXPECT_GT(num_stopped, 0);
}

TEST_P(EngineTest, EndsAtTheContextsEnd) {
  const TestModel m = make_model();
  const rl::Completion at_models_end = run_alone(*m.model, request_of(1, 250, 1, 1000), config()).completions[0];
  EXPECT_EQ(at_models_end.tokens.size(), 6U);
  EXPECT_EQ(at_models_end.finish_reason, rl::FinishReason::kLength);
  GroupRequest request = request_of(1, 20, 1, 1000);
  request.sampling.max_context_tokens = 32;
  EXPECT_EQ(run_alone(*m.model, request, config()).completions[0].tokens.size(), 12U);
}

TEST_P(EngineTest, RefusesWhatCanNeverRun) {
  const TestModel m = make_model();
  EngineConfig config = EngineTest::config();
  config.num_kv_blocks = 4;
  const std::unique_ptr<Engine> engine = make_engine(config, *m.model);
  engine->add(request_of(1, 32, 1, 33));  // 64 tokens of KV: 4 blocks
  EXPECT_THROW(engine->add(request_of(2, 32, 1, 34)), UserError);
  EXPECT_THROW(engine->add(request_of(2, 256, 1, 1)), UserError);
  EXPECT_THROW(engine->add(request_of(2, 0, 1, 1)), UserError);
  EXPECT_THROW(engine->add(request_of(1, 8, 1, 1)), BugError);  // group 1 is in flight
  const auto refused = [&engine](auto change) {
    GroupRequest request = request_of(2, 8, 1, 8);
    change(request);
    EXPECT_THROW(engine->add(request), UserError);
  };
  refused([](GroupRequest& r) { r.prompt = rl::make_prompt({1, 2, 3, 64}); });
  refused([](GroupRequest& r) { r.prompt = rl::make_prompt({1, 2, 3, -1}); });
  refused([](GroupRequest& r) { r.sampling.max_context_tokens = 257; });
  refused([](GroupRequest& r) { r.sampling.max_context_tokens = 8; });
  refused([](GroupRequest& r) { r.sampling.max_new_tokens = 0; });
  refused([](GroupRequest& r) { r.sampling.temperature = -1.0; });
  refused([](GroupRequest& r) { r.sampling.temperature = std::numeric_limits<double>::quiet_NaN(); });
  refused([](GroupRequest& r) { r.sampling.top_p = 0.0; });
  refused([](GroupRequest& r) { r.sampling.top_p = 1.5; });
  refused([](GroupRequest& r) { r.sampling.top_k = -2; });
  refused([](GroupRequest& r) { r.sampling.min_p = 1.5; });
  refused([](GroupRequest& r) { r.sampling.stop = {""}; });
  EXPECT_EQ(finish_all(*engine).size(), 1U);
  config.num_kv_blocks = 0;
  EXPECT_THROW(make_engine(config, *m.model), BugError);
}

TEST_P(EngineTest, SaysWhenTheModelGivesNoNumbers) {
  TestModel m = make_model();
  m.store->tensor("final_norm").fill_(std::numeric_limits<float>::quiet_NaN());
  EngineConfig config = EngineTest::config();
  config.why_not_finite = [] { return std::string("the norm is damaged"); };
  const std::unique_ptr<Engine> engine = make_engine(config, *m.model);
  engine->add(request_of(1, 8, 2, 4));
  try {
    engine->next_finished();
    FAIL() << "logits that are NaN went unnoticed";
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("not finite: the norm is damaged"), std::string::npos) << error.what();
  }
}

// The results after a rank is lost mean nothing: they are neither used nor blamed on the weights.
TEST_P(EngineTest, AsksForRanksBeforeItUsesWhatAStepGave) {
  TestModel m = make_model();
  EngineConfig config = EngineTest::config();
  int64_t num_asked = 0;
  config.check_ranks = [&] {
    if (++num_asked != 3) return;
    m.store->tensor("final_norm").fill_(std::numeric_limits<float>::quiet_NaN());
    throw EnvironmentError("rank 1 is gone");
  };
  config.why_not_finite = [] { return std::string("the norm is damaged"); };
  const std::unique_ptr<Engine> engine = make_engine(config, *m.model);
  engine->add(request_of(1, 8, 2, 20));
  try {
    engine->next_finished();
    FAIL() << "a lost rank went unnoticed";
  } catch (const EnvironmentError& error) {
    EXPECT_STREQ(error.what(), "rank 1 is gone");
  }
  EXPECT_EQ(num_asked, 3);
}

}  // namespace
}  // namespace tandem::rollout
