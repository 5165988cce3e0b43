// Tests of the groups that a filter keeps, and of filters that misbehave.
#include "groups/group_filter.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "base/bell.h"
#include "base/files.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"

namespace tandem::groups {
namespace {

// Waits that long for verdicts.
std::map<uint64_t, GroupVerdict> take_within(GroupFilter& filter, double seconds) {
  base::wait_readable(std::array{filter.descriptor().value()}, seconds);
  return filter.take();
}

std::string reason(const std::vector<double>& rewards) {
  const GroupVerdict verdict = judge_by_std(rewards);
  return verdict.is_kept ? "kept" : verdict.reason;
}

TEST(GroupFilter, TheBuiltInOneKeepsGroupsWhoseRewardsDiffer) {
  EXPECT_EQ(reason({0, 0, 1, 0}), "kept");
  EXPECT_EQ(reason({1, 1, 1}), "zero_std_1.0");
  EXPECT_EQ(reason({0, 0}), "zero_std_0.0");
  EXPECT_EQ(reason({-0.0, -0.0}), "zero_std_0.0");
  EXPECT_EQ(reason({-1, -1}), "zero_std_-1.0");
  EXPECT_EQ(reason({0.25, 0.25}), "zero_std_0.3");
  EXPECT_EQ(reason({1}), "zero_std_1.0") << "one reward differs from none";
  EXPECT_EQ(reason({1, 1 + 1e-7}), "zero_std_1.0") << "slime's threshold";
  EXPECT_EQ(reason({1, 1 + 1e-5}), "kept");
}

// The samples of one group, as the rollout submits them.
std::vector<reward::GradeRequest> group(uint64_t id, const std::vector<double>& rewards) {
  std::vector<reward::GradeRequest> samples;
  for (size_t i = 0; i < rewards.size(); ++i) {
    samples.emplace_back();
    samples.back().group_id = id;
    samples.back().sample_id = id * 8 + i;
    samples.back().prompt = "What is 6 times 7?";
    samples.back().prompt_text = "<What is 6 times 7?>";
    samples.back().response = std::string(i + 1, 'x');
    samples.back().response_tokens.assign(i + 1, 5);
    samples.back().label = "42";
    samples.back().metadata = base::Json({{"level", 2}});
    samples.back().graded =
        reward::Graded{.reward = rewards[i], .extras = {{"acc", 0.5}}, .remove_sample = i == 0, .status = "truncated"};
  }
  return samples;
}

class PythonFilter {
 public:
  explicit PythonFilter(const std::string& code, double deadline_s = 30.0) {
    base::write_file_durably(folder_ / "filter.py", code);
    config::DynamicSamplingOptions options;
    options.filter_path = folder_ / "filter.py:keep";
    config::RewardOptions reward;
    reward.limits.deadline_s = deadline_s;
    session::RewardContext context;
    context.label_key = "label";
    context.metadata_key = "metadata";
    context.arguments = {{"reward-key", ""}, {"rollout-batch-size", 3}};
    filter_.emplace(options, reward, context);
  }

  GroupVerdict judge(const std::vector<double>& rewards) {
    filter_->submit(group(++last_, rewards));
    while (true) {
      const auto verdicts = take_within(*filter_, 10.0);
      if (verdicts.contains(last_)) return verdicts.at(last_);
    }
  }
  GroupFilter& filter() { return *filter_; }

 private:
  base::TemporaryDirectory folder_;
  std::optional<GroupFilter> filter_;
  uint64_t last_ = 0;
};

TEST(GroupFilter, APythonOneIsWrittenAsForSlime) {
  PythonFilter python(
      "from slime.rollout.filter_hub.base_types import DynamicFilterOutput\n"
      "from slime.rollout.filter_hub.dynamic_sampling_filters import check_reward_nonzero_std\n"
      "from slime.utils.types import Sample\n"
      "def keep(args, samples, **kwargs):\n"
      "    assert args.rollout_batch_size == 3 and not kwargs\n"
      "    first = samples[0]\n"
      "    assert isinstance(first, Sample) and first.status == Sample.Status.TRUNCATED, first\n"
      "    assert first.label == '42' and first.metadata == {'level': 2} and first.remove_sample, first\n"
      "    assert [s.response_length for s in samples] == list(range(1, len(samples) + 1))\n"
      "    if first.reward == 7: return True\n"
      "    if first.reward == 8: return False\n"
      "    if first.reward == 9: return DynamicFilterOutput(keep=False, reason='too\\n  dear')\n"
      "    return check_reward_nonzero_std(args, samples)\n");
  EXPECT_TRUE(python.judge({7, 7}).is_kept);
  EXPECT_EQ(python.judge({8, 8}).reason, "no_reason");
  EXPECT_EQ(python.judge({9, 9}).reason, "too dear");
  EXPECT_EQ(python.judge({1, 1}).reason, "zero_std_1.0");
  const GroupVerdict kept = python.judge({1, 0});
  EXPECT_TRUE(kept.is_kept && kept.reason.empty() && kept.failure.empty()) << kept.reason << kept.failure;
}

TEST(GroupFilter, OneThatFailsKeepsTheGroupAndSaysWhy) {
  PythonFilter python(
      "import os, time\n"
      "def keep(args, samples):\n"
      "    reward = samples[0].reward\n"
      "    if reward == 1: raise ValueError('no such group')\n"
      "    if reward == 2: return None\n"
      "    if reward == 3: return 'yes'\n"
      "    if reward == 4: os._exit(3)\n"
      "    if reward == 5: time.sleep(60)\n"
      "    return True\n",
      /*deadline_s=*/0.5);
  for (const auto& [reward, says] :
       {std::pair{1.0, "no such group"}, {2.0, "a NoneType"}, {3.0, "a str"}, {4.0, "exit"}, {5.0, "deadline"}}) {
    const GroupVerdict verdict = python.judge({reward, reward});
    EXPECT_TRUE(verdict.is_kept) << says;
    EXPECT_NE(verdict.failure.find(says), std::string::npos) << verdict.failure;
  }
  EXPECT_TRUE(python.judge({6}).failure.empty()) << "it goes on after each of them";
}

TEST(GroupFilter, WhatIsDiscardedIsNeverSeenAgain) {
  PythonFilter python("def keep(args, samples): return samples[0].reward > 0\n");
  for (uint64_t id = 100; id < 120; ++id) python.filter().submit(group(id, {1, 1}));
  python.filter().discard();
  python.filter().submit(group(200, {0, 1}));
  const auto verdicts = take_within(python.filter(), 10.0);
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_FALSE(verdicts.at(200).is_kept);
}

std::string refusal(const std::string& code, const std::string& name = "keep") {
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "filter.py", code);
  config::DynamicSamplingOptions options;
  options.filter_path = folder / ("filter.py:" + name);
  return base::thrown_by([&] { try_out_filter(options, {}, {}); });
}

TEST(GroupFilter, OneThatCannotBeUsedIsRefusedAtTheStart) {
  EXPECT_EQ(refusal("def keep(args, samples): return True\n"), "");
  const std::array<std::pair<std::string, std::string>, 4> cases = {{
      {"async def keep(args, samples): return True\n", "is async"},
      {"def keep(samples): return True\n", "cannot be called with (args, samples)"},
      {"def other(args, samples): return True\n", "has no keep; its functions: other"},
      {"def keep(args, samples) return True\n", "SyntaxError"},
  }};
  for (const auto& [code, says] : cases) {
    const std::string line = refusal(code);
    EXPECT_TRUE(line.starts_with("--dynamic-sampling-filter-path ")) << line;
    EXPECT_NE(line.find(says), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace tandem::groups
