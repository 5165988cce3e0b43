// Tests that a completion which is paused by its budget and begun again, as often as one likes and in any company, gets
// the bits of the uncut one.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "rollout/replica_calls.h"
#include "tandem/error.h"
#include "tests/rollout/ahead_ops.h"
#include "tests/rollout/engine_fixture.h"

namespace tandem::rollout {
namespace {

using rl::FinishReason;

// Tokens have one or two of three letters, so that a text soon has any three; the last four have none.
std::vector<std::string> few_letters() {
  std::vector<std::string> bytes;
  for (int t = 0; t < 60; ++t) {
    bytes.emplace_back(1, static_cast<char>('a' + t % 3));
    if (t % 5 == 0) bytes.back() += static_cast<char>('a' + t / 5 % 3);
  }
  return bytes;
}

std::string text_of(const std::vector<std::string>& token_bytes, const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) {
    if (static_cast<size_t>(token) < token_bytes.size()) text += token_bytes[static_cast<size_t>(token)];
  }
  return text;
}

// Expects that the first tokens of `whole` are those of `part`, bit for bit.
void expect_beginning(const rl::Completion& part, const rl::Completion& whole) {
  const auto begins = [](const auto& a, const auto& b) {
    return a.size() <= b.size() && std::equal(a.begin(), a.end(), b.begin());
  };
  EXPECT_EQ(part.sample_id, whole.sample_id);
  EXPECT_TRUE(begins(part.tokens, whole.tokens));
  EXPECT_TRUE(begins(part.logprobs, whole.logprobs));
  EXPECT_TRUE(begins(part.behavior_logprobs, whole.behavior_logprobs));
}

// Returns the request that goes on from the completions of a group, each for at most `budget` tokens.
GroupRequest continued(const GroupRequest& request, const std::vector<rl::Completion>& completions, int64_t budget) {
  GroupRequest next = request;
  next.begun = completions;
  next.budgets.assign(completions.size(), budget);
  return next;
}

GroupRequest drawn_group(std::mt19937& random, uint64_t group_id) {
  GroupRequest request;
  request.group_id = group_id;
  const int64_t lengths[] = {1, 2, 15, 16, 17, 31, 32, 40};
  request.prompt = random_prompt(static_cast<uint32_t>(random()), lengths[random() % 8]);
  for (uint64_t n = 1 + random() % 8; n > 0; --n) request.sample_ids.push_back(group_id * 20 + n);
  rl::SamplingParams& sampling = request.sampling;
  const double temperatures[] = {0.0, 0.7, 1.0, 1.0, 1.5};
  sampling.temperature = temperatures[random() % 5];
  if (random() % 4 == 0) sampling.top_p = 0.9;
  if (random() % 4 == 0) sampling.top_k = 20;
  if (random() % 4 == 0) sampling.min_p = 0.05;
  sampling.max_new_tokens = 1 + static_cast<int64_t>(random() % (random() % 2 == 0 ? 180 : 60));
  sampling.ignore_eos = random() % 3 == 0;
  if (random() % 3 == 0) sampling.stop_token_ids = {static_cast<int32_t>(random() % 64)};
  const auto letter = [&random] { return static_cast<char>('a' + random() % 3); };
  if (random() % 2 == 0) sampling.stop = {{letter(), letter(), letter()}, "zzz"};
  sampling.seed = random() % 3;
  return request;
}

// An engine of a size that may be too small for what comes: the longest sequence has 220 tokens, 14 blocks.
EngineConfig drawn_engine(std::mt19937& random) {
  EngineConfig config;
  config.token_bytes = few_letters();
  config.limits.max_batch_tokens = 1 + static_cast<int64_t>(random() % 70);
  config.limits.max_running = 1 + static_cast<int64_t>(random() % 20);
  config.num_kv_blocks = 14 + static_cast<int64_t>(random() % 3 * (random() % 8));
  config.lookahead = static_cast<int64_t>(random() % 2);
  config.record_steps = random() % 2 == 0;
  return config;
}

struct Reached {  // numbers of the cases that the drawn runs are meant to reach
  int64_t cuts = 0, aborts = 0, turns = 0, within_stop_string = 0, length_at_budget = 0, stop_at_budget = 0;
  int64_t preemptions = 0, resumed_tokens = 0, kept_tokens = 0, shared_tokens = 0;
};

// Samples groups in phases. In each one, groups begin, and all samples that have not ended are lent to an engine, which
// may be a new one: those of a group at once or in two parts, each sample with a budget of its own.
class Phases {
 public:
  Phases(model::Model& model, const std::vector<GroupRequest>& groups, uint32_t seed, Reached& reached)
      : model_(model), groups_(groups), random_(seed), reached_(reached) {}

  // Returns the completions that ended, by sample id. `whole` are the uncut ones.
  std::map<uint64_t, rl::Completion> run(const std::map<uint64_t, rl::Completion>& whole) {
    while (ended_.size() < whole.size() && !testing::Test::HasFailure()) {
      if (engine_ == nullptr || random_() % 5 == 0) {
        count_stats();
        engine_ = make_engine(drawn_engine(random_), model_);
      }
      num_groups_ = std::min<size_t>(groups_.size(), num_groups_ + 1 + random_() % 2);
      for (size_t g = 0; g < num_groups_; ++g) {
        const uint64_t num_parts = 1 + random_() % 2;
        for (uint64_t part = 0; part < num_parts; ++part) lend(groups_[g], num_parts, part);
      }
      for (const auto& [key, group] : finish_all(*engine_)) {
        for (const rl::Completion& completion : group.completions) take(completion, whole.at(completion.sample_id));
      }
    }
    count_stats();
    return ended_;
  }

 private:
  void lend(const GroupRequest& group, uint64_t num_parts, uint64_t part) {
    GroupRequest request = group;
    request.group_id = ++last_loan_;
    request.sample_ids.clear();
    for (const uint64_t id : group.sample_ids) {
      if (ended_.contains(id) || id % num_parts != part) continue;
      request.sample_ids.push_back(id);
      rl::Completion& begun = so_far_[id];
      begun.sample_id = id;
      request.begun.push_back(begun);
      request.budgets.push_back(
          random_() % 6 == 0 ? 0 : 1 + static_cast<int64_t>(random_() % (random_() % 3 == 0 ? 120 : 16)));
      budgets_[id] = request.budgets.back();
      stops_[id] = group.sampling;
    }
    if (request.sample_ids.empty()) return;
    if (request.sample_ids.size() == 1 && random_() % 3 > 0) {
      request.owner = PrefixOwner{.group_id = group.group_id, .sample_id = request.sample_ids.front()};
      ++reached_.turns;
    }
    engine_->add(request);
    for (uint64_t steps = random_() % 8; steps > 0; --steps) engine_->step();
    if (random_() % 12 == 0) engine_->abort(1 + random_() % last_loan_);
  }

  void take(const rl::Completion& completion, const rl::Completion& whole) {
    const uint64_t id = completion.sample_id;
    SCOPED_TRACE(testing::Message() << "sample " << id);
    expect_beginning(completion, whole);
    const auto num_begun = std::ssize(so_far_.at(id).tokens);
    const int64_t num_new = std::ssize(completion.tokens) - num_begun;
    const int64_t budget = budgets_.at(id);
    EXPECT_TRUE(budget == 0 || num_new <= budget) << num_new << " of " << budget;
    if (completion.finish_reason == FinishReason::kPaused || completion.finish_reason == FinishReason::kAbort) {
      const bool is_paused = completion.finish_reason == FinishReason::kPaused;
      if (is_paused) {
        EXPECT_EQ(num_new, budget);
      }
      ++(is_paused ? reached_.cuts : reached_.aborts);
      so_far_[id] = completion;
      return;
    }
    ended_[id] = completion;
    engine_->release(id);
    const bool stops = completion.finish_reason == FinishReason::kStop;
    ++(num_new < budget || budget == 0 ? ignored_ : stops ? reached_.stop_at_budget : reached_.length_at_budget);
    const std::vector<std::string> bytes = few_letters();
    const std::string text = text_of(bytes, completion.tokens);
    const std::vector<int32_t>& begun = so_far_.at(id).tokens;
    for (const std::string& stop : stops_.at(id).stop) {
      const size_t at = text.find(stop);
      if (at != std::string::npos && at < text_of(bytes, begun).size()) ++reached_.within_stop_string;
    }
  }

  void count_stats() {
    if (engine_ == nullptr) return;
    const EngineStats stats = engine_->stats();
    reached_.preemptions += stats.preemptions;
    reached_.resumed_tokens += stats.resumed_tokens;
    reached_.kept_tokens += stats.kept_tokens;
    reached_.shared_tokens += stats.shared_prompt_tokens;
  }

  model::Model& model_;
  const std::vector<GroupRequest>& groups_;
  std::mt19937 random_;
  Reached& reached_;
  std::unique_ptr<Engine> engine_;
  size_t num_groups_ = 0;  // groups begun
  uint64_t last_loan_ = 0;
  std::map<uint64_t, rl::Completion> so_far_, ended_;  // by sample id
  std::map<uint64_t, int64_t> budgets_;                // of the last loan, by sample id
  std::map<uint64_t, rl::SamplingParams> stops_;       // by sample id
  int64_t ignored_ = 0;
};

TEST(Begun, CutsChangeNoBitOfACompletion) {
  const TestModel plain = make_small_model(at::kFloat);
  const AheadOps ops(test_ops());
  const TestModel on_ahead = model::random_model(plain.config, ops);
  Reached reached;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::vector<GroupRequest> groups;
    for (uint64_t id = 0; id < 1 + seed % 6; ++id) groups.push_back(drawn_group(random, id));
    EngineConfig roomy;
    roomy.token_bytes = few_letters();
    const std::unique_ptr<Engine> reference = make_engine(roomy, *plain.model);
    for (const GroupRequest& group : groups) reference->add(group);
    std::map<uint64_t, rl::Completion> whole;
    for (const auto& [id, group] : finish_all(*reference)) {
      for (const rl::Completion& completion : group.completions) whole[completion.sample_id] = completion;
    }
    const auto ended = Phases(*on_ahead.model, groups, seed, reached).run(whole);
    if (HasFailure()) return;
    for (const auto& [id, completion] : ended) {
      expect_same_completion(completion, whole.at(id));
      ASSERT_EQ(completion.versions.size(), 1U) << "one version has sampled it all";
      EXPECT_EQ(completion.versions[0].begin, 0);
    }
  }
  std::printf(
      "[   info   ] %lld cuts, %lld aborts, %lld turns, %lld cuts within a stop string, %lld and %lld ends by "
      "length and stop at the budget, %lld preemptions, %lld resumed, %lld kept, %lld shared tokens\n",
      static_cast<long long>(reached.cuts), static_cast<long long>(reached.aborts),
      static_cast<long long>(reached.turns), static_cast<long long>(reached.within_stop_string),
      static_cast<long long>(reached.length_at_budget), static_cast<long long>(reached.stop_at_budget),
      static_cast<long long>(reached.preemptions), static_cast<long long>(reached.resumed_tokens),
      static_cast<long long>(reached.kept_tokens), static_cast<long long>(reached.shared_tokens));
  // The runs reach the cases that they are meant to test.
  EXPECT_GT(reached.cuts, 200);
  EXPECT_GT(reached.aborts, 20);
  EXPECT_GT(reached.turns, 20);
  EXPECT_GT(reached.within_stop_string, 10);
  EXPECT_GT(reached.length_at_budget, 5);
  EXPECT_GT(reached.stop_at_budget, 5);
  EXPECT_GT(reached.preemptions, 5);
  EXPECT_GT(reached.resumed_tokens, 1000);
  EXPECT_GT(reached.kept_tokens, 50);
  EXPECT_GT(reached.shared_tokens, 1000);
}

// Everything below is promised in step with the device and ahead of it.
class BegunTest : public testing::TestWithParam<int64_t> {
 protected:
  TestModel make_model() const { return model::random_model(make_small_model(at::kFloat).config, ops_); }
  static EngineConfig config() {
    EngineConfig config;
    config.lookahead = GetParam();
    config.token_bytes = few_letters();
    return config;
  }

 private:
  AheadOps ops_{test_ops()};
};

INSTANTIATE_TEST_SUITE_P(Lookahead, BegunTest, testing::Values(0, 1), testing::PrintToStringParamName());

TEST_P(BegunTest, ABudgetOfOneGivesATokenARequest) {
  const TestModel m = make_model();
  GroupRequest request = request_of(1, 20, 3, 12);
  request.sampling.top_p = 0.9;
  const rl::Group whole = run_alone(*m.model, request, config());
  const std::unique_ptr<Engine> engine = make_engine(config(), *m.model);
  rl::Group group;
  group.completions.resize(3);
  for (size_t i = 0; i < 3; ++i) group.completions[i].sample_id = request.sample_ids[i];
  for (size_t n = 1; n <= 12; ++n) {
    engine->add(continued(request, group.completions, 1));
    group = finish_all(*engine).at(1);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(group.completions[i].tokens.size(), n);
      EXPECT_EQ(group.completions[i].finish_reason, n < 12 ? FinishReason::kPaused : FinishReason::kLength);
    }
  }
  expect_same_group(group, whole);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.generated_tokens, 3 * 12);
  EXPECT_EQ(stats.resumed_tokens, 3 * (11 * 12 / 2));
  EXPECT_EQ(stats.forwards, 12);
  EXPECT_EQ(stats.wasted_rows, 0);
  EXPECT_EQ(stats.recomputed_tokens, 0);
  EXPECT_EQ(stats.prefill_tokens, 20 + 11 * (20 + 2 * 4)) << "the full block of the prompt is shared";
}

TEST_P(BegunTest, MayBePreemptedInsideItsBudget) {
  const TestModel m = make_model();
  const GroupRequest request = request_of(1, 40, 4, 180);
  const rl::Group whole = run_alone(*m.model, request, config());
  EngineConfig small = config();
  small.num_kv_blocks = 20;  // one sample alone may need 14, and all together 2 + 4 x 12
  const std::unique_ptr<Engine> engine = make_engine(small, *m.model);
  GroupRequest begins = request;
  begins.budgets = {3, 30, 16, 8};
  engine->add(begins);
  rl::Group group = finish_all(*engine).at(1);
  for (const int64_t budget : {80, 0}) {
    engine->add(continued(request, group.completions, budget));
    group = finish_all(*engine).at(1);
  }
  EXPECT_GT(engine->stats().preemptions, 0);
  EXPECT_GT(engine->stats().recomputed_tokens, 0);
  expect_same_group(group, whole);
}

TEST_P(BegunTest, FindsAStopStringThatTheCutDivides) {
  const TestModel m = make_model();
  const rl::Completion whole = run_alone(*m.model, request_of(1, 20, 1, 40), config()).completions[0];
  EngineConfig config = BegunTest::config();
  config.token_bytes.clear();  // token t is the letters xy of t = 8 x + y
  for (int t = 0; t < 64; ++t) {
    config.token_bytes.push_back({static_cast<char>('a' + t / 8), static_cast<char>('A' + t % 8)});
  }
  // The stop string is the end of token 10, all of token 11 and the beginning of token 12.
  const std::string stop = text_of(config.token_bytes, whole.tokens).substr(21, 4);
  GroupRequest request = request_of(1, 20, 1, 40);
  request.sampling.stop = {"zzzz", stop};
  const rl::Completion uncut = run_alone(*m.model, request, config).completions[0];
  ASSERT_EQ(uncut.tokens.size(), 13U);
  ASSERT_EQ(uncut.finish_reason, FinishReason::kStop);
  for (const int64_t first : {10, 11, 12}) {
    SCOPED_TRACE(first);
    GroupRequest begins = request;
    begins.budgets = {first};
    const rl::Group paused = run_alone(*m.model, begins, config);
    ASSERT_EQ(paused.completions[0].finish_reason, FinishReason::kPaused);
    ASSERT_EQ(std::ssize(paused.completions[0].tokens), first);
    // Uncut from here on, paused once more, and ended by the last token of its budget.
    expect_same_completion(run_alone(*m.model, continued(request, paused.completions, 0), config).completions[0],
                           uncut);
    const rl::Group again = run_alone(*m.model, continued(request, paused.completions, 1), config);
    EXPECT_EQ(again.completions[0].finish_reason, first < 12 ? FinishReason::kPaused : FinishReason::kStop);
    expect_same_completion(
        run_alone(*m.model, continued(request, paused.completions, 13 - first), config).completions[0], uncut);
  }
}

TEST_P(BegunTest, EndsRatherThanPausesAtItsLastToken) {
  const TestModel m = make_model();
  GroupRequest request = request_of(1, 20, 1, 40);
  const rl::Completion whole = run_alone(*m.model, request, config()).completions[0];
  const auto reason_with = [&](int64_t budget, int64_t num_tokens) {
    request.budgets = {budget};
    const rl::Completion completion = run_alone(*m.model, request, config()).completions[0];
    expect_beginning(completion, whole);
    EXPECT_EQ(std::ssize(completion.tokens), num_tokens);
    return completion.finish_reason;
  };
  EXPECT_EQ(reason_with(39, 39), FinishReason::kPaused);
  EXPECT_EQ(reason_with(40, 40), FinishReason::kLength);
  EXPECT_EQ(reason_with(1000, 40), FinishReason::kLength);
  request.sampling.ignore_eos = false;
  request.sampling.stop_token_ids = {whole.tokens[9]};
  const auto first = std::ranges::find_if(whole.tokens, [&](int32_t t) { return t == whole.tokens[9] || t == 1; });
  const int64_t length = first - whole.tokens.begin() + 1;
  ASSERT_GT(length, 1);
  EXPECT_EQ(reason_with(length - 1, length - 1), FinishReason::kPaused);
  EXPECT_EQ(reason_with(length, length), FinishReason::kStop);
}

TEST_P(BegunTest, ItsTokensHaveTheVersionThatSampledThem) {
  TestModel m = make_model();
  const std::unique_ptr<Engine> engine = make_engine(config(), *m.model);
  GroupRequest request = request_of(1, 37, 4, 50);
  request.sampling.temperature = 0.8;
  request.sampling.top_p = 0.9;
  std::vector<rl::Completion> completions(4);
  for (size_t i = 0; i < 4; ++i) completions[i].sample_id = request.sample_ids[i];
  std::vector<std::vector<rl::VersionSpan>> spans(4);
  std::mt19937 random(5);
  for (const bool changes : {false, true, true, false, true}) {
    if (changes) m.change_weights(random());
    engine->update_weights(m.store->view());
    GroupRequest next = continued(request, completions, 0);
    for (int64_t& budget : next.budgets) budget = 1 + static_cast<int64_t>(random() % 9);
    engine->add(next);
    std::vector<rl::Completion> paused = finish_all(*engine).at(1).completions;
    for (size_t i = 0; i < 4; ++i) {
      const size_t begin = completions[i].tokens.size();
      if (spans[i].empty() || changes)
        spans[i].push_back({.begin = static_cast<int64_t>(begin), .version = m.model->weight_version()});
      expect_beginning(completions[i], paused[i]);
      ASSERT_EQ(std::ssize(paused[i].tokens) - static_cast<int64_t>(begin), next.budgets[i]);
      // The log-probs of the new tokens are those of the new weights, over everything before them.
      const std::vector<float> scored = score(*m.model, request.prompt->tokens, paused[i].tokens, 0.8);
      EXPECT_TRUE(std::equal(scored.begin() + static_cast<std::ptrdiff_t>(begin), scored.end(),
                             paused[i].logprobs.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
    completions = std::move(paused);
  }
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_EQ(completions[i].versions.size(), 4U);
    for (size_t s = 0; s < 4; ++s) {
      EXPECT_EQ(completions[i].versions[s].begin, spans[i][s].begin);
      EXPECT_EQ(completions[i].versions[s].version, spans[i][s].version);
    }
  }
  // A sample never goes back to older weights.
  m.store->set_version(1);
  engine->update_weights(m.store->view());
  engine->add(continued(request, completions, 1));
  EXPECT_THROW(engine->next_finished(), BugError);
}

TEST_P(BegunTest, RefusesWhatCannotGoOn) {
  const TestModel m = make_model();
  const std::unique_ptr<Engine> engine = make_engine(config(), *m.model);
  GroupRequest request = request_of(1, 20, 2, 30);
  request.budgets = {8, 12};
  engine->add(request);
  const std::vector<rl::Completion> begun = finish_all(*engine).at(1).completions;
  const GroupRequest next = continued(request, begun, 5);
  const auto with = [&next](auto change) {
    GroupRequest changed = next;
    change(changed);
    return changed;
  };
  // It has as many tokens as the limits allow, or more; it is of another model.
  EXPECT_THROW(engine->add(with([](GroupRequest& r) { r.sampling.max_new_tokens = 12; })), UserError);
  EXPECT_THROW(engine->add(with([](GroupRequest& r) { r.sampling.max_context_tokens = 31; })), UserError);
  EXPECT_THROW(engine->add(with([](GroupRequest& r) { r.begun[1].tokens[3] = 64; })), UserError);
  // What ends a completion now has ended it.
  EXPECT_THROW(engine->add(with([&](GroupRequest& r) {
    r.sampling.ignore_eos = false;
    r.sampling.stop_token_ids = {begun[0].tokens[2]};
  })),
               UserError);
  // The caller has mixed things up.
  EXPECT_THROW(engine->add(with([](GroupRequest& r) { r.begun.pop_back(); })), BugError);
  EXPECT_THROW(engine->add(with([](GroupRequest& r) { r.budgets.pop_back(); })), BugError);
  EXPECT_THROW(engine->add(with([](GroupRequest& r) { r.budgets[0] = -1; })), BugError);
  EXPECT_THROW(engine->add(with([](GroupRequest& r) { std::swap(r.begun[0], r.begun[1]); })), BugError);
  EXPECT_THROW(engine->add(with([](GroupRequest& r) { r.begun[0].logprobs.pop_back(); })), BugError);
  EXPECT_THROW(engine->add(with([](GroupRequest& r) { r.begun[0].versions.clear(); })), BugError);
  EXPECT_THROW(engine->add(with([](GroupRequest& r) { r.sampling.top_p = 0.5; })), BugError);
  // Nothing is left of what was refused.
  EXPECT_EQ(engine->num_unfinished_groups(), 0);
  engine->add(next);
  EXPECT_EQ(finish_all(*engine).at(1).completions[0].tokens.size(), 13U);
}

TEST(Begun, ARequestIsPassedOnWhole) {
  GroupRequest request = request_of(1, 4, 2, 9);
  request.budgets = {3, 0};
  request.begun = {{.sample_id = 100,
                    .tokens = {7, 8},
                    .logprobs = {-1.0F, -2.0F},
                    .behavior_logprobs = {-0.5F, -0.25F},
                    .finish_reason = FinishReason::kPaused,
                    .versions = {{.begin = 0, .version = 3}, {.begin = 1, .version = 4}}},
                   rl::Completion()};
  request.begun[1].sample_id = 101;
  const std::vector<ReplicaCall> calls = replica_calls(to_bytes({request}));
  ASSERT_EQ(calls.size(), 1U);
  const auto& read = std::get<GroupRequest>(calls[0]);
  EXPECT_EQ(read.prompt->tokens, request.prompt->tokens);
  EXPECT_EQ(read.budgets, request.budgets);
  ASSERT_EQ(read.begun.size(), 2U);
  expect_same_completion(read.begun[0], request.begun[0]);
  expect_same_completion(read.begun[1], request.begun[1]);
  ASSERT_EQ(read.begun[0].versions.size(), 2U);
  EXPECT_EQ(read.begun[0].versions[1].begin, 1);
  EXPECT_EQ(read.begun[0].versions[1].version, 4U);
}

}  // namespace
}  // namespace tandem::rollout
