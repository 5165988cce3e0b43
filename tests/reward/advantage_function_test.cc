// The user's function of --custom-advantage-path: what it is given, what it may return, and what becomes of one that
// fails. The examples of examples/advantages are rows of a table.
#include "reward/advantage_function.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tandem/error.h"

namespace tandem::reward {
namespace {

using base::Json;
using Values = std::vector<std::vector<SampleAdvantages>>;

AdvantageConfig config_of(const std::string& function) {
  AdvantageConfig config;
  config.worker = worker::default_worker_config();
  config.function = function;
  config.metadata_key = "metadata";
  config.arguments = {{"lr", 0.5}, {"reward-weights", {1, 2}}};
  config.warn_of_missing_layers = false;
  return config;
}

AdvantageFunction test_function(const std::string& name) {
  return AdvantageFunction(config_of("tests/reward/rewards/advantages.py:" + name));
}

Json sample(double reward, const Json& more = Json::object()) {
  Json json = {{"index", 0},
               {"reward", reward},
               {"rewards", {{"exact", reward}}},
               {"extras", Json::object()},
               {"advantage", reward},
               {"response", "answer"},
               {"tokens", {4, 5, 6}},
               {"log_probs", {-0.5, -0.25, -1.5}},
               {"ref_log_probs", nullptr},
               {"loss_mask", "111"},
               {"status", "completed"},
               {"removed", false},
               {"pieces", Json::array()}};
  json.update(more);
  return json;
}

// A sample of three tokens, the second of which a generate function inserted.
Json sample_of_turns(double reward, const std::string& answer = "b") {
  return sample(reward, {{"loss_mask", "101"},
                         {"pieces",
                          {{{"begin", 0}, {"is_sampled", true}, {"text", "a"}},
                           {{"begin", 1}, {"is_sampled", false}, {"text", answer}},
                           {{"begin", 2}, {"is_sampled", true}, {"text", "c"}}}}});
}

AdvantageGroup group(const std::vector<Json>& samples, const Json& more = Json::object()) {
  AdvantageGroup result;
  Json message = {{"prompt_index", nullptr}, {"prompt", "2+2"}, {"label", "4"}, {"metadata", Json::object()}};
  message.update(more);
  message["samples"] = samples;
  for (const Json& one : samples) {
    const size_t num_turns = one["pieces"].empty() ? 1 : 2;
    result.samples.push_back({.num_tokens = one["tokens"].size(), .num_turns = num_turns});
  }
  result.message = [message] { return message; };
  return result;
}

std::vector<AdvantageGroup> two_groups() {
  return {group({sample(1), sample_of_turns(0)}), group({sample(2), sample(5)})};
}

AdvantageResult call(const std::string& name) { return test_function(name).call(0, two_groups(), "{}"); }

TEST(AdvantageFunction, GivesASampleATurnOrATokenItsNumber) {
  EXPECT_EQ(call("samples").groups, (Values{{{{0.0}}, {{-1.0}}}, {{{0.0}}, {{3.0}}}}));
  EXPECT_EQ(call("turns").groups, (Values{{{{0.0}}, {{0.0, 10.0}}}, {{{0.0}}, {{0.0}}}}));
  EXPECT_EQ(call("tokens").groups, (Values(2, {{{4.0, 5.0, 6.0}}, {{4.0, 5.0, 6.0}}})));
}

TEST(AdvantageFunction, IsGivenAllThatIsKnownOfTheGroups) {
  const Json first = sample(0, {{"ref_log_probs", {-1, -1, -1}}});
  Json second = sample_of_turns(0.5);
  second.update({{"index", 1},
                 {"rewards", {{"exact", 1.0}, {"short", nullptr}}},
                 {"extras", {{"acc", 1.0}}},
                 {"advantage", {1, 2, 3}},
                 {"status", "truncated"},
                 {"removed", true}});
  const AdvantageResult result = test_function("given").call(
      0,
      {group({first, second}, {{"prompt_index", 7}, {"metadata", {{"x", 1}, {"metadata", {{"level", 3}}}}}}),
       group({sample(0), sample(0)})},
      "{}");
  EXPECT_EQ(result.reason, "");
  EXPECT_EQ(result.groups, (Values{{{{1.0}}, std::nullopt}, {{{1.0}}, {{2.5}}}}));
}

// What Python keeps in a module would be lost when a run resumes, so each rollout begins without it.
TEST(AdvantageFunction, KeepsItsStateAndNothingElse) {
  AdvantageFunction function = test_function("remembers");
  std::string state = "{}";
  for (int rollout = 1; rollout <= 3; ++rollout) {
    const AdvantageResult result = function.call(static_cast<uint64_t>(rollout), two_groups(), state);
    ASSERT_EQ(result.reason, "");
    EXPECT_EQ(result.groups[0][0], std::vector{10.0 * rollout + 1.0});
    state = result.state;
  }
  EXPECT_EQ(state, R"({"calls": 3, "lengths": [2, 2, 2]})");
  AdvantageFunction resumed = test_function("remembers");
  EXPECT_EQ(resumed.call(4, two_groups(), state).groups[0][0], std::vector{41.0});
}

TEST(AdvantageFunction, DrawsByTheNumberOfTheRollout) {
  AdvantageFunction function = test_function("random_numbers");
  const Values first = function.call(1, two_groups(), "{}").groups,
               second = function.call(2, two_groups(), "{}").groups;
  EXPECT_NE(first, second);
  EXPECT_EQ(test_function("random_numbers").call(2, two_groups(), "{}").groups, second);
}

TEST(AdvantageFunction, OfManyTokensIsCalledOnce) {
  std::vector<AdvantageGroup> groups;
  for (int g = 0; g < 3; ++g) {
    Json json = sample(g);
    json["tokens"] = std::vector<int>(200'000, 1);
    json["log_probs"] = std::vector<double>(200'000, -0.5);
    json["loss_mask"] = std::string(200'000, '1');
    groups.push_back(group({json, json}));
  }
  AdvantageFunction function = test_function("remembers");
  const AdvantageResult result = function.call(0, groups, "{}");
  EXPECT_EQ(result.state, R"({"calls": 1, "lengths": [3]})") << result.reason;
  EXPECT_EQ(result.groups, Values(3, {{{11.0}}, {{11.0}}}));
}

TEST(AdvantageFunction, ThatFailsSaysWhyAndTheNextRolloutIsTriedAgain) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"raises", "exception", "ZeroDivisionError: division by zero (advantages.py:"},
      {"leaves", "exception", "SystemExit: 3 (advantages.py:"},
      {"dies", "died", "exited with code 5"},
      {"lies", "died", ""},
      {"too_few_groups", "wrong_count", "the function returned 1 items for 2 groups"},
      {"too_few_samples", "wrong_count", "item 0 (group 0) has 1 items for the 2 samples of the group"},
      {"too_few_tokens", "wrong_count",
       "item 0 (group 0), sample 0: 4 numbers; return one, one for each of its 1 turns, or one for each of its 3 "
       "tokens"},
      {"not_a_list", "wrong_type", "what the function returned is a float, not a list"},
      {"a_text", "wrong_type", "item 0 (group 0), sample 0 is a str, not a number"},
      {"not_a_number", "not_finite", "item 0 (group 0), sample 0 is nan"},
      {"too_large", "not_finite", "item 0 (group 0), sample 0 is an integer beyond floating point"},
      {"strange_state", "wrong_type", "state holds something that is no JSON (Object of type set is not JSON"},
      {"large_state", "wrong_type", "characters as JSON; at most 8388608"},
  };
  for (const auto& [name, reason_class, reason] : cases) {
    AdvantageFunction function = test_function(name);
    for (int attempt = 0; attempt < 2; ++attempt) {
      const AdvantageResult result = function.call(0, two_groups(), "{}");
      EXPECT_TRUE(result.failed) << name;
      EXPECT_EQ(result.reason_class, reason_class) << name << ": " << result.reason;
      EXPECT_NE(result.reason.find(reason), std::string::npos) << name << ": " << result.reason;
      EXPECT_TRUE(result.groups.empty()) << name;
    }
  }
}

TEST(AdvantageFunction, IsConfinedAndHasADeadline) {
  const AdvantageResult network = call("reads_the_network");
  EXPECT_EQ(network.reason_class, "exception");
  EXPECT_NE(network.reason.find("PermissionError"), std::string::npos) << network.reason;
  AdvantageConfig config = config_of("tests/reward/rewards/advantages.py:hangs");
  config.deadline_s = 0.1;  // for each of the four samples
  const AdvantageResult result = AdvantageFunction(config).call(0, two_groups(), "{}");
  EXPECT_EQ(result.reason_class, "deadline") << result.reason;
}

TEST(AdvantageFunction, ThatCannotBeUsedIsRefusedAtOnce) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"is_async", "is async, and is called without await; write a plain def"},
      {"no_groups", "has no parameter groups; write def fn(groups)"},
      {"wants_more", "cannot be called with groups, state, args; write def fn(groups), and name state and args"},
      {"nothing", "the file has no nothing; its functions: a_text, dies"},
  };
  for (const auto& [name, says] : cases) {
    try {
      test_function(name);
      ADD_FAILURE() << name << " was accepted";
    } catch (const UserError& error) {
      const std::string text = error.what();
      EXPECT_TRUE(text.starts_with("--custom-advantage-path tests/reward/rewards/advantages.py:" + name)) << text;
      EXPECT_NE(text.find(says), std::string::npos) << text;
    }
  }
}

struct Example {
  std::string file;
  std::vector<AdvantageGroup> groups;
  Values expected;
};

Json two_rewards(double first, const Json& second) {
  return sample(first, {{"rewards", {{"exact", first}, {"short", second}}}});
}

Json with_extras(Json sample, const Json& extras) {
  sample["extras"] = extras;
  return sample;
}

// The numbers of GDPO are those of a float64 computation with numpy, apart from the example.
TEST(AdvantageFunction, ExamplesComputeWhatTheySay) {
  const std::vector<Example> examples = {
      {"gdpo.py",
       {group({two_rewards(1, 0.1), two_rewards(0, 0.3), two_rewards(0, nullptr)}),
        group({two_rewards(1, 5), two_rewards(1, 5), two_rewards(1, 5)})},
       {{{{-0.55171606}}, {{1.78272262}}, {{-1.23100656}}}, {{{0.0}}, {{0.0}}, {{0.0}}}}},
      {"curriculum.py",
       {group({sample(1), sample(0), sample(0), sample(0)}, {{"prompt_index", 3}}), group({sample(1), sample(1)})},
       {{{{0.75}}, {{0.0}}, {{0.0}}, {{0.0}}}, {{{0.05}}, {{0.05}}}}},
      {"turn_credit.py",
       {group({sample_of_turns(1, "Error: no such key"), sample_of_turns(1, "42")}), group({sample(2)})},
       {{{{0.5, 1.0}}, {{1.0, 1.0}}}, {{{2.0}}}}},
      // Rewards of turns 1, 0 and 1, 1: the mean is 3/4, the standard deviation the root of 3 over 4.
      {"turn_rewards.py",
       {group({with_extras(sample_of_turns(0.5), {{"turn_0", 1.0}, {"turn_1", 0.0}}), sample_of_turns(1)}),
        group({sample(2), sample(2)})},
       {{{{0.57734894, -1.73204681}}, {{0.57734894, 0.57734894}}}, {{{0.0}}, {{0.0}}}}},
  };
  for (const Example& example : examples) {
    AdvantageFunction function(config_of("examples/advantages/" + example.file + ":advantages"));
    const AdvantageResult result = function.call(0, example.groups, "{}");
    ASSERT_EQ(result.reason, "") << example.file;
    ASSERT_EQ(result.groups.size(), example.expected.size());
    for (size_t g = 0; g < result.groups.size(); ++g) {
      ASSERT_EQ(result.groups[g].size(), example.expected[g].size());
      for (size_t s = 0; s < result.groups[g].size(); ++s) {
        const std::vector<double>&ours = result.groups[g][s].value(), &theirs = example.expected[g][s].value();
        ASSERT_EQ(ours.size(), theirs.size()) << example.file;
        for (size_t k = 0; k < ours.size(); ++k) EXPECT_NEAR(ours[k], theirs[k], 1e-7) << example.file << g << s << k;
      }
    }
  }
}

// The second time that a prompt is seen, its past counts.
TEST(AdvantageFunction, TheCurriculumRemembersPassRates) {
  AdvantageFunction function(config_of("examples/advantages/curriculum.py:advantages"));
  const std::vector<AdvantageGroup> solved = {group({sample(1), sample(1)}, {{"prompt_index", 3}})};
  const AdvantageResult first = function.call(0, solved, R"({"3": [0.0, 4.0]})");
  EXPECT_EQ(first.state, R"({"3": [2.0, 5.6]})") << first.reason;
  EXPECT_NEAR(first.groups[0][0].value()[0], 4.0 * (2.0 / 5.6) * (1.0 - 2.0 / 5.6), 1e-12);
}

}  // namespace
}  // namespace tandem::reward
