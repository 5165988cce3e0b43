// Samples pass by the right reward, and rules by which pass@k would not depend on the samples are refused.
#include "config/reward_options.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/base/thrown.h"

namespace tandem::config {
namespace {

RewardOptions docs_example() {
  RewardOptions options;
  options.rm_type = {"boxed_math"};
  options.custom_rm_path = {"reward.py:format", "reward.py:brevity"};
  options.reward_weights = {1.0, 0.2, 0.1};
  return options;
}

std::string refusal(const RewardOptions& options) {
  return base::thrown_by([&] {
    options.check();
    options.check_some_pass();
  });
}

TEST(PassRule, IsTheFirstRewardAndTheValueOne) {
  RewardOptions options = docs_example();
  EXPECT_EQ(options.pass_rule().reward, "boxed_math");
  EXPECT_EQ(options.pass_rule().threshold, 1.0);
  EXPECT_EQ(options.pass_text(), "boxed_math >= 1");
  options.pass_reward = "brevity";
  options.pass_threshold = 0.25;
  EXPECT_EQ(options.pass_text(), "brevity >= 0.25");
  EXPECT_EQ(refusal(options), "");

  RewardOptions one;
  one.rm_type = {"math"};
  EXPECT_EQ(one.pass_text(), "") << "there is nothing to choose";
  one.custom_rm_path = {"a.py:reward", "b.py:reward"};
  one.pass_reward = "reward_2";
  EXPECT_EQ(one.pass_text(), "reward_2 >= 1");
}

TEST(PassRule, WhatCouldNeverPassIsRefusedAndWhatAlwaysWould) {
  RewardOptions options = docs_example();
  options.pass_reward = "formt";
  EXPECT_EQ(refusal(options), "--pass-reward formt: no reward has that name; give one of boxed_math, format, brevity");
  options.pass_reward.clear();
  options.pass_threshold = 1.3;
  EXPECT_EQ(refusal(options),
            "--pass-threshold 1.3: boxed_math is 1 at most, so no sample could ever pass; give 1 or less");
  options.pass_threshold = 0.0;
  EXPECT_EQ(refusal(options), "--pass-threshold 0: boxed_math is 0 at least, so every sample would pass; give more");
  options.rm_type = {"dapo"};  // -1 or 1
  EXPECT_EQ(refusal(options), "");
  options.pass_threshold = 1.3;
  options.pass_reward = "format";  // a function may return anything
  EXPECT_EQ(refusal(options), "");
  options.pass_reward.clear();
  options.line_types = {"remote_rm"};  // so may a service, which some lines ask
  EXPECT_EQ(refusal(options), "");
}

}  // namespace
}  // namespace tandem::config
