// Runs that cannot learn are told so within two rollouts, with the cause; runs that can get no message.
#include "rl/learning_health.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <string>

#include "tests/rl/simulated_run.h"

namespace tandem::rl {
namespace {

std::vector<const Sample*> views(const std::vector<Sample>& samples) {
  std::vector<const Sample*> result;
  for (const Sample& sample : samples) result.push_back(&sample);
  return result;
}

// Holds a LearningHealth with its messages and counts.
struct Watched {
  explicit Watched(const SimulatedRun& run)
      : watch(
            run.settings, [this](const std::string& line) { warnings.push_back(line); },
            [this](const std::string& line) { notes.push_back(line); }) {}
  LearningHealth watch;
  std::vector<std::string> warnings, notes;
  LearningHealth::Counts counts;  // counts of the last rollout and its steps
};

// Makes a sample whose grading failed and that has no reward.
void drop(Sample& sample) {
  sample.grading_failed = true;
  sample.has_reward = false;
  sample.remove = true;
}

using Break = std::function<void(SimulatedRun&, std::vector<Sample>&)>;

// Observes one rollout and its optimizer steps, as a run does; `spoil` changes samples before they have advantages.
void go(SimulatedRun& run, Watched& watched, int64_t index, const Break& spoil = {},
        const Break& spoil_after_advantages = {}) {
  std::vector<Sample> samples = run.rollout(index);
  if (spoil) spoil(run, samples);
  assign_advantages(run.loss, samples);
  if (spoil_after_advantages) spoil_after_advantages(run, samples);
  watched.counts = watched.watch.observe_rollout(index, views(samples));
  const std::vector<const Sample*> all = views(samples);
  for (int64_t k = 0; k < run.steps_per_rollout; ++k) {
    const int64_t step = index * run.steps_per_rollout + k;
    watched.counts.merge(watched.watch.observe_step(step, all, run.learning_rate(step)));
  }
}

struct BadRun {
  const char* key;
  const char* says;                          // part of the sentence: its cause or remedy
  std::function<void(SimulatedRun&)> setup;  // may be empty
  Break spoil, spoil_after_advantages;
};

Break each(const std::function<void(SimulatedRun&, Sample&)>& change) {
  return [change](SimulatedRun& run, std::vector<Sample>& samples) {
    for (Sample& sample : samples) change(run, sample);
  };
}

void truncate(SimulatedRun& run, Sample& sample) {
  sample.completion.assign(static_cast<size_t>(run.response_tokens), 7);
  for (int32_t& token : sample.completion) token = static_cast<int32_t>(run.draw(3, 500));
  sample.loss_mask.assign(sample.completion.size(), 1);
  sample.status = SampleStatus::kTruncated;
}

void use_groups(SimulatedRun& run) {
  run.loss.advantage_estimator = "grpo";
  run.settings.compares_group = true;
}

const std::vector<BadRun>& bad_runs() {
  static const std::vector<BadRun> runs = {
      {"rewards_equal", "does not tell completions apart", {}, each([](auto&, Sample& s) { s.reward = 0.25; }), {}},
      {"group_rewards_equal",
       "looks at the prompt",
       [](SimulatedRun& run) {
         use_groups(run);
         run.num_groups = std::max<int64_t>(run.num_groups, 3);
       },
       each([](auto&, Sample& s) { s.reward = static_cast<double>(s.group_id % 3); }),
       {}},
      {"answer_never_right",
       "--label-key",
       [](SimulatedRun& run) { run.settings.lowest_reward = 0.0; },
       each([](auto&, Sample& s) { s.reward = 0.0; }),
       {}},
      {"task_solved", "solved already", {}, each([](auto&, Sample& s) { s.reward = 1.0; }), {}},
      {"advantages_zero",
       "--group-epsilon",
       [](SimulatedRun& run) {
         use_groups(run);
         run.graded_by_length = true;
       },
       {},
       each([](auto&, Sample& s) { s.advantages.assign(1, 0.0); })},
      {"completions_truncated", "--rollout-max-response-len", {}, each(truncate), {}},
      {"completions_truncated",
       "--rollout-max-response-len",
       [](SimulatedRun& run) { run.num_groups += 12; },
       [](SimulatedRun& run, std::vector<Sample>& samples) {
         for (size_t i = 0; i < samples.size() * 7 / 10; ++i) truncate(run, samples[i]);
       },
       {}},
      {"eos_never_sampled",
       "names no EOS",
       [](SimulatedRun& run) {
         run.settings.can_stop = false;
         run.settings.eos_token_ids = "";
       },
       each(truncate),
       {}},
      {"eos_never_sampled",
       "never samples EOS 2",
       [](SimulatedRun& run) {
         run.response_tokens = run.settings.max_response_tokens = 1024;
         run.num_groups = 12;
         run.num_per_group = 2;
       },
       each(truncate),
       {}},
      {"completions_empty",
       "before it begins",
       {},
       [](SimulatedRun& run, std::vector<Sample>& samples) {
         for (size_t i = 0; i < samples.size(); i += 3) samples[i].text = run.draw(0, 1) == 0 ? "" : " \n";
       },
       {}},
      {"grader_always_fails",
       "--rm-timeout",
       {},
       each([](auto&, Sample& s) {
         drop(s);
         s.reward = 0.0;
       }),
       {}},
      {"template_opens_no_answer",
       "add_generation_prompt",
       [](SimulatedRun& run) { run.settings.template_opens_answer = false; },
       {},
       {}},
      {"learning_rate_zero", "--lr more than 0", [](SimulatedRun& run) { run.settings.lr = 0.0; }, {}, {}},
      {"loss_mask_zero",
       "loss mask is 0",
       {},
       each([](auto&, Sample& s) { std::fill(s.loss_mask.begin(), s.loss_mask.end(), uint8_t{0}); }),
       {}},
      {"prompts_dropped",
       "--rollout-max-prompt-len",
       [](SimulatedRun& run) { run.settings.num_prompts_dropped = run.draw(11, 900); },
       {},
       {}},
  };
  return runs;
}

TEST(LearningHealth, NamesEveryFaultWithinTwoRollouts) {
  for (const BadRun& bad : bad_runs()) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(testing::Message() << bad.key << ", \"" << bad.says << "\", seed " << seed);
      SimulatedRun run(seed);
      run.make_large_enough();
      if (bad.setup) bad.setup(run);
      Watched watched(run);
      double first_count = 0.0;
      for (int64_t index = 0; index < 2; ++index) {
        go(run, watched, index, bad.spoil, bad.spoil_after_advantages);
        if (index == 0) first_count = watched.counts[std::string("fault/") + bad.key];
      }
      EXPECT_GT(first_count, 0.0);
      std::vector<std::string> lines = watched.warnings;
      lines.insert(lines.end(), watched.notes.begin(), watched.notes.end());
      const auto says = [&bad](const std::string& line) { return line.find(bad.says) != std::string::npos; };
      EXPECT_EQ(std::count_if(lines.begin(), lines.end(), says), 1) << testing::PrintToString(lines);
      EXPECT_EQ(lines.size(), 1U) << testing::PrintToString(lines);
      for (const std::string& line : lines) EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    }
  }
}

TEST(LearningHealth, IsSilentOnHealthyRuns) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimulatedRun run(seed);
    Watched watched(run);
    for (int64_t index = 0; index < run.num_rollouts; ++index) go(run, watched, index);
    EXPECT_TRUE(watched.warnings.empty())
        << "seed " << seed << ", " << run.loss.advantage_estimator << ", " << run.num_groups << " x "
        << run.num_per_group << ": " << testing::PrintToString(watched.warnings);
  }
}

// In each rollout nine groups of ten are all right and teach nothing; the tenth does.
TEST(LearningHealth, IsSilentWhereMostGroupsAreSolved) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimulatedRun run(seed);
    run.loss.advantage_estimator = "grpo";
    run.settings.compares_group = true;
    run.graded_by_length = false;
    Watched watched(run);
    for (int64_t index = 0; index < run.num_rollouts; ++index) {
      go(run, watched, index, [](SimulatedRun& r, std::vector<Sample>& samples) {
        for (size_t i = 0; i < samples.size(); i += static_cast<size_t>(r.num_per_group)) {
          if (r.uniform() > 0.9) continue;
          for (size_t k = i; k < i + static_cast<size_t>(r.num_per_group); ++k) samples[k].reward = 1.0;
        }
      });
    }
    EXPECT_TRUE(watched.warnings.empty()) << "seed " << seed << ": " << testing::PrintToString(watched.warnings);
  }
}

// The run has four samples a rollout, half of them right: every eighth rollout has equal rewards.
TEST(LearningHealth, IsSilentOnRolloutsOfFourSamples) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimulatedRun run(seed);
    run.num_groups = 1;
    run.num_per_group = 4;
    run.accuracy = 0.5;
    run.num_rollouts = 100;
    run.settings.num_steps = 100 * run.steps_per_rollout;
    Watched watched(run);
    for (int64_t index = 0; index < run.num_rollouts; ++index) go(run, watched, index);
    EXPECT_TRUE(watched.warnings.empty()) << "seed " << seed << ": " << testing::PrintToString(watched.warnings);
  }
}

// One answer in twenty is right: rollouts without a right one are frequent, and no alarm once there was one.
TEST(LearningHealth, IsSilentWhereRightAnswersAreRare) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimulatedRun run(seed);
    use_groups(run);
    run.num_groups = 4;
    run.num_per_group = 8;
    run.graded_by_length = false;
    Watched watched(run);
    for (int64_t index = 0; index < run.num_rollouts; ++index) {
      go(run, watched, index, [index](SimulatedRun& r, std::vector<Sample>& samples) {
        for (Sample& sample : samples) sample.reward = r.uniform() < 0.05 ? 1.0 : 0.0;
        if (index == 0) samples[0].reward = 1.0;
      });
    }
    EXPECT_TRUE(watched.warnings.empty()) << "seed " << seed << ": " << testing::PrintToString(watched.warnings);
  }
}

TEST(LearningHealth, WaitsForASecondRollout) {
  SimulatedRun run(17);
  use_groups(run);
  run.num_groups = 8;
  run.num_per_group = 8;
  Watched watched(run);
  go(run, watched, 0, each([](auto&, Sample& s) { s.reward = 0.0; }));
  go(run, watched, 1);
  EXPECT_TRUE(watched.warnings.empty()) << testing::PrintToString(watched.warnings);
}

TEST(LearningHealth, EvidenceOfEqualRewardsIsInARow) {
  SimulatedRun run(31);
  use_groups(run);
  run.graded_by_length = true;
  run.num_groups = 2;
  run.num_per_group = 12;
  Watched watched(run);
  int64_t index = 0;
  while (index < 50) go(run, watched, index++);
  const Break equal = each([](auto&, Sample& s) { s.reward = 0.0; });
  for (const Break& spoil : {equal, Break(), equal, Break(), equal}) go(run, watched, index++, spoil);
  EXPECT_TRUE(watched.warnings.empty()) << testing::PrintToString(watched.warnings);
  for (int i = 0; i < 2; ++i) go(run, watched, index++, equal);
  EXPECT_EQ(watched.warnings.size(), 1U) << "six groups in a row";
}

TEST(LearningHealth, RoundingIsNoAdvantage) {
  for (const char* estimator : {"grpo", "reinforce_plus_plus_baseline"}) {
    SimulatedRun run(19);
    use_groups(run);
    run.loss.advantage_estimator = estimator;
    run.num_groups = 5;
    run.num_per_group = 3;
    Watched watched(run);
    go(run, watched, 0, each([](auto&, Sample& s) { s.reward = 0.1; }));  // 0.1 + 0.1 + 0.1 is not 3 times 0.1
    EXPECT_EQ(watched.counts["fault/advantages_zero"], 15.0) << estimator;
  }
}

TEST(LearningHealth, SaysThatGroupsOfOneTeachNothing) {
  SimulatedRun run(23);
  use_groups(run);
  run.graded_by_length = true;
  run.num_groups = 12;
  run.num_per_group = 2;
  Watched watched(run);
  go(run, watched, 0, [](SimulatedRun&, std::vector<Sample>& samples) {
    for (size_t i = 0; i < samples.size(); i += 2) drop(samples[i]);
  });
  ASSERT_EQ(watched.warnings.size(), 1U);
  EXPECT_NE(watched.warnings[0].find("no group has two samples with a reward, so all 12 advantages are 0"),
            std::string::npos)
      << watched.warnings[0];
}

// Nothing was returned by a function that failed, and yet what it returned was to be checked.
TEST(LearningHealth, AdvantagesThatFailedAreNotSaidToBeZero) {
  for (const bool has_failed : {false, true}) {
    SimulatedRun run(5);
    use_groups(run);
    run.make_large_enough();
    run.graded_by_length = true;
    run.settings.advantages = "--custom-advantage-path advantages.py:f";
    Watched watched(run);
    std::vector<Sample> samples = run.rollout(0);
    for (size_t i = 0; i < samples.size(); ++i) {
      samples[i].reward = static_cast<double>(i % static_cast<size_t>(run.num_per_group));
      samples[i].advantages = {0.0};
    }
    const LearningHealth::Counts counts =
        watched.watch.observe_rollout(0, views(samples), {.causes = {}, .advantages_failed = has_failed});
    EXPECT_NE(counts.contains("fault/advantages_zero"), has_failed);
    const bool is_said = std::ranges::any_of(watched.warnings, [](const std::string& line) {
      return line.find("so nothing is learnt: check what --custom-advantage-path advantages.py:f returns") !=
             std::string::npos;
    });
    EXPECT_NE(is_said, has_failed);
  }
}

// The causes of all rollouts of a stretch are added up.
TEST(LearningHealth, NamesTheCauseOfSamplesWithoutAReward) {
  SimulatedRun run(11);
  run.num_groups = 1;
  run.num_per_group = 3;
  run.settings.generate = "--custom-generate-function-path agent.py:run";
  Watched watched(run);
  std::vector<Sample> samples = run.rollout(0);
  for (Sample& sample : samples) drop(sample);
  for (const int64_t rollout : {0, 1}) {
    const LearningHealth::Counts counts =
        watched.watch.observe_rollout(rollout, views(samples), {.causes = {.num_not_made = 3}});
    EXPECT_EQ(counts.at("fault/grader_always_fails"), 3.0);
  }
  ASSERT_EQ(watched.warnings.size(), 1U);
  EXPECT_NE(watched.warnings[0].find("rollouts 1 to 2: --custom-generate-function-path agent.py:run failed on all 6 "
                                     "samples, so none has a reward"),
            std::string::npos)
      << watched.warnings[0];
}

// Samples that are out of the loss train nothing, whatever their masks hold.
TEST(LearningHealth, LooksAtTheMasksOfSamplesInTheLoss) {
  SimulatedRun run(29);
  Watched watched(run);
  std::vector<Sample> samples = run.rollout(0);
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].remove = i % 2 == 0;
    if (!samples[i].remove) samples[i].loss_mask.assign(samples[i].loss_mask.size(), 0);
  }
  const auto kept = static_cast<double>(samples.size() / 2);
  EXPECT_EQ(watched.watch.observe_step(0, views(samples), 1e-6),
            (LearningHealth::Counts{{"fault/loss_mask_zero", kept}}));
  samples[1].loss_mask[0] = 1;
  EXPECT_TRUE(watched.watch.observe_step(1, views(samples), 1e-6).empty());
  for (Sample& sample : samples) sample.remove = true;
  EXPECT_TRUE(watched.watch.observe_step(2, views(samples), 1e-6).empty()) << "the graders' fault";
}

// A teacher tells completions apart, in the advantages or in the loss, so rewards need not.
TEST(LearningHealth, EqualRewardsAreNoFaultWhereATeacherTeaches) {
  for (const bool has_teacher : {false, true}) {
    SimulatedRun run(1);
    run.loss = LossConfig();
    run.truncated_share = run.empty_share = 0.0;
    run.graded_by_length = true;
    run.settings.learns_from_teacher = has_teacher;
    Watched watched(run);
    go(run, watched, 0, [](auto&, std::vector<Sample>& samples) {
      for (Sample& sample : samples) sample.reward = 0.3;
    });
    for (const char* fault : {"fault/rewards_equal", "fault/advantages_zero"})
      EXPECT_NE(watched.counts.contains(fault), has_teacher) << fault;
  }
}

TEST(LearningHealth, CountsExactly) {
  SimulatedRun run(7);
  use_groups(run);
  run.num_groups = 5;
  run.num_per_group = 4;
  run.truncated_share = run.empty_share = 0.0;
  run.graded_by_length = true;
  run.settings.lr_warmup_steps = run.warmup_steps = 0;
  run.steps_per_rollout = 1;
  Watched watched(run);
  go(run, watched, 0);
  EXPECT_EQ(watched.counts, LearningHealth::Counts());
  const auto first = [](int64_t count, const std::function<void(SimulatedRun&, Sample&)>& change) {
    return [count, change](SimulatedRun& r, std::vector<Sample>& samples) {
      for (int64_t i = 0; i < count; ++i) change(r, samples[static_cast<size_t>(i)]);
    };
  };
  using Counts = LearningHealth::Counts;
  go(run, watched, 1, first(10, truncate));  // half is not more than half
  EXPECT_EQ(watched.counts, Counts());
  go(run, watched, 2, first(11, truncate));
  EXPECT_EQ(watched.counts, (Counts{{"fault/completions_truncated", 11}}));
  go(run, watched, 3, first(4, [](auto&, Sample& s) { s.text.clear(); }));  // a fifth is not more
  EXPECT_EQ(watched.counts, Counts());
  go(run, watched, 4, first(5, [](auto&, Sample& s) { s.text.clear(); }));
  EXPECT_EQ(watched.counts, (Counts{{"fault/completions_empty", 5}}));
  go(run, watched, 5, first(20, [](auto&, Sample& s) { s.reward = 0.3; }));
  EXPECT_EQ(watched.counts, (Counts{{"fault/rewards_equal", 20}, {"fault/advantages_zero", 20}}));
  go(run, watched, 6, first(20, [](auto&, Sample& s) { s.reward = 0.0; }));
  EXPECT_EQ(watched.counts, (Counts{{"fault/answer_never_right", 20}, {"fault/advantages_zero", 20}}));
  go(run, watched, 7, first(20, [](auto&, Sample& s) { s.reward = 1.0; }));
  EXPECT_EQ(watched.counts, (Counts{{"fault/task_solved", 20}, {"fault/advantages_zero", 20}}));
  go(run, watched, 8, first(20, [](auto&, Sample& s) { s.reward = static_cast<double>(s.group_id); }));
  EXPECT_EQ(watched.counts, (Counts{{"fault/group_rewards_equal", 5}, {"fault/advantages_zero", 20}}));
  go(run, watched, 9, first(20, [](auto&, Sample& s) { drop(s); }));
  EXPECT_EQ(watched.counts, (Counts{{"fault/grader_always_fails", 20}}));
  go(run, watched, 10, first(20, [](auto&, Sample& s) { s.loss_mask.assign(s.loss_mask.size(), 0); }));
  EXPECT_EQ(watched.counts, (Counts{{"fault/loss_mask_zero", 20}}));
  run.settings.lr = 0.0;
  go(run, watched, 11);
  EXPECT_EQ(watched.counts, (Counts{{"fault/learning_rate_zero", 1}}));
}

// The counts of a resumed run must not depend on earlier rollouts of the killed process.
TEST(LearningHealth, CountsOneRolloutAlone) {
  for (const BadRun& bad : bad_runs()) {
    SimulatedRun run(3), resumed(3);
    for (SimulatedRun* each_run : {&run, &resumed}) {
      each_run->make_large_enough();
      if (bad.setup) bad.setup(*each_run);
    }
    Watched watched(run), watched_later(resumed);
    for (int64_t index = 0; index < 5; ++index) {
      const std::mt19937_64 before = run.random;
      go(run, watched, index, bad.spoil, bad.spoil_after_advantages);
      if (index < 4) continue;
      resumed.random = before;
      go(resumed, watched_later, index, bad.spoil, bad.spoil_after_advantages);
    }
    EXPECT_EQ(watched.counts, watched_later.counts) << bad.key;
  }
}

TEST(LearningHealth, RepeatsItselfRarelyAndWhenAFaultComesBack) {
  SimulatedRun run(11);
  run.make_large_enough();
  run.truncated_share = 0.0;
  Watched watched(run);
  int64_t index = 0;
  const auto cut_until = [&](int64_t end) {
    for (; index < end; ++index) go(run, watched, index, each(truncate));
    const auto is_cut = [](const std::string& line) { return line.find("were cut") != std::string::npos; };
    return std::count_if(watched.warnings.begin(), watched.warnings.end(), is_cut);
  };
  EXPECT_EQ(cut_until(LearningHealth::kRepeatEvery), 1);
  EXPECT_EQ(cut_until(LearningHealth::kRepeatEvery + 2), 2);
  const auto pause = [&](int64_t count) {
    for (const int64_t end = index + count; index < end; ++index) go(run, watched, index);
  };
  pause(LearningHealth::kForgetAfter - 1);
  EXPECT_EQ(cut_until(index + 2), 2) << "a short pause is no absence";
  pause(LearningHealth::kForgetAfter);
  EXPECT_EQ(cut_until(index + 2), 3);
}

// The context leaves a long prompt fewer tokens than a short one.
TEST(LearningHealth, SaysUpToHowManyTokensWhereNotAllAreCutAtTheSame) {
  for (const int64_t most_taken : {0, 1}) {
    SimulatedRun run(11);
    run.make_large_enough();
    Watched watched(run);
    int64_t num_cut = 0;
    const auto cut_short = [&](SimulatedRun& of, Sample& sample) {
      truncate(of, sample);
      sample.completion.resize(sample.completion.size() - static_cast<size_t>(num_cut++ % 2 * most_taken));
      sample.loss_mask.resize(sample.completion.size());
    };
    for (int64_t index = 0; index < 2; ++index) go(run, watched, index, each(cut_short));
    const std::string expected =
        fmt::format("were cut at {}{} tokens", most_taken > 0 ? "up to " : "", run.response_tokens);
    const bool is_said = std::ranges::any_of(
        watched.warnings, [&](const std::string& line) { return line.find(expected) != std::string::npos; });
    EXPECT_TRUE(is_said) << expected << " in " << testing::PrintToString(watched.warnings);
  }
}

// Rewards become equal late in a run: at the best reward the task is solved, which is no alarm; at another the policy
// broke.
TEST(LearningHealth, TellsASolvedTaskFromABrokenPolicy) {
  for (const double reward : {1.0, 0.0}) {
    SimulatedRun run(5);
    use_groups(run);
    run.graded_by_length = false;
    run.num_groups = 8;
    run.num_per_group = 8;
    run.accuracy = 0.5;
    Watched watched(run);
    for (int64_t index = 0; index < 10; ++index) go(run, watched, index);
    ASSERT_TRUE(watched.warnings.empty() && watched.notes.empty());
    for (int64_t index = 10; index < 12; ++index) {
      go(run, watched, index, each([reward](auto&, Sample& s) { s.reward = reward; }));
    }
    ASSERT_EQ(watched.warnings.size(), reward == 1.0 ? 0U : 1U);
    ASSERT_EQ(watched.notes.size(), reward == 1.0 ? 1U : 0U);
    if (reward == 1.0) {
      EXPECT_NE(watched.notes[0].find("the task is solved and more steps teach nothing"), std::string::npos)
          << watched.notes[0];
    }
  }
}

// Equal rewards after rewards that differed once blamed the labels, which had been right: a step was too large. A run
// that resumes after it knows that too.
TEST(LearningHealth, ACollapseBlamesTheStepAndNotTheLabels) {
  for (const double reward : {0.0, 0.1}) {
    SimulatedRun run(5);
    use_groups(run);
    run.graded_by_length = false;
    run.num_groups = run.num_per_group = 8;
    run.accuracy = 0.5;
    run.settings.lr = 0.01;
    const Break collapse = each([reward](SimulatedRun& r, Sample& s) {
      truncate(r, s);  // a broken policy does this: no reason to raise the limit
      s.reward = reward;
    });
    Watched watched(run);
    for (int64_t index = 0; index < 3; ++index) go(run, watched, index);
    EXPECT_EQ(watched.watch.differed_until(), 2);
    SimulatedRun resumed = run;
    for (int64_t index = 3; index < 5; ++index) go(run, watched, index, collapse);
    resumed.settings.differed_until = 2;
    Watched later(resumed);
    for (int64_t index = 3; index < 5; ++index) go(resumed, later, index, collapse);
    for (const Watched* each_watch : {&watched, &later}) {
      std::string said;
      for (const std::string& line : each_watch->warnings) said += line + "\n";
      EXPECT_NE(said.find(reward == 0.0 ? "rewards were above 0 until rollout 3, so most likely"
                                        : "rewards were not all 0.1 until rollout 3, so most likely"),
                std::string::npos)
          << said;
      EXPECT_NE(said.find("lower --lr 0.01"), std::string::npos) << said;
      EXPECT_EQ(said.find("--label-key"), std::string::npos) << said;
      EXPECT_EQ(said.find("no answer was ever finished"), std::string::npos) << said;
      EXPECT_EQ(said.find("eos_token_id"), std::string::npos) << said;
    }
  }
}

// All rewards 1, then all of them lower: it was said that rewards differ between prompts.
TEST(LearningHealth, ACollapseOfASolvedTaskBlamesTheStepToo) {
  for (const double reward : {0.0, 0.25}) {
    SimulatedRun run(5);
    use_groups(run);
    run.graded_by_length = false;
    run.num_groups = run.num_per_group = 8;
    Watched watched(run);
    for (int64_t index = 0; index < 4; ++index) go(run, watched, index, each([](auto&, Sample& s) { s.reward = 1.0; }));
    watched.warnings.clear();  // that the task is solved from the start
    for (int64_t index = 4; index < 6; ++index)
      go(run, watched, index, each([reward](auto&, Sample& s) { s.reward = reward; }));
    ASSERT_EQ(watched.warnings.size(), 1U) << testing::PrintToString(watched.warnings);
    const std::string& said = watched.warnings[0];
    EXPECT_NE(said.find(reward == 0.0 ? "all 64 rewards are 0, " : "all 64 rewards are 0.25, "), std::string::npos)
        << said;
    EXPECT_NE(said.find(reward == 0.0 ? "rewards were above 0 until rollout 4, so most likely"
                                      : "rewards were not all 0.25 until rollout 4, so most likely"),
              std::string::npos)
        << said;
    EXPECT_EQ(watched.watch.differed_until(), 3) << "a run that resumes behind it knows so too";
  }
}

// One prompt a rollout, and a reward that looks at the prompt alone: rewards that fall are no collapse then.
TEST(LearningHealth, RewardsOfThePromptAloneAreNoCollapse) {
  SimulatedRun run(5);
  use_groups(run);
  run.num_groups = 1;
  run.num_per_group = 8;
  run.num_rollouts = 100;
  Watched watched(run);
  for (int64_t index = 0; index < 40; ++index) {
    const double reward = index / 3 % 2 == 0 ? 1.0 : 0.0;
    go(run, watched, index, each([reward](auto&, Sample& s) { s.reward = reward; }));
  }
  ASSERT_FALSE(watched.warnings.empty());
  EXPECT_NE(watched.warnings.back().find("rewards differ between prompts"), std::string::npos)
      << watched.warnings.back();
  for (const std::string& line : watched.warnings) EXPECT_EQ(line.find("has collapsed"), std::string::npos) << line;
}

// All rewards 1 from the start were said as information, and a run of a few samples heard nothing.
TEST(LearningHealth, EqualRewardsFromTheStartAreAWarningHoweverShortTheRun) {
  for (const double reward : {1.0, 0.5, 0.0}) {
    SimulatedRun run(5);
    use_groups(run);
    run.num_groups = 1;
    run.num_per_group = 4;
    run.graded_by_length = false;
    run.settings.num_rollouts = 2;
    const Break equal = each([reward](auto&, Sample& s) { s.reward = reward; });
    Watched watched(run);
    go(run, watched, 0, equal);
    EXPECT_TRUE(watched.warnings.empty()) << "four samples may be chance";
    go(run, watched, 1, equal);
    ASSERT_EQ(watched.warnings.size(), 1U);
    EXPECT_NE(watched.warnings[0].find("rollouts 1 to 2: all 8 rewards are "), std::string::npos);
    EXPECT_TRUE(watched.notes.empty());
    // Rewards that differed before, in this process or an earlier one, may be equal by chance at the end.
    Watched after(run);
    go(run, after, 1, equal);
    EXPECT_TRUE(after.warnings.empty() && after.notes.empty());
  }
}

TEST(LearningHealth, AFilterThatDropsNearlyAllIsCountedAndSaidRarely) {
  SimulatedRun run(1);
  run.settings.filter = "nonzero_std";
  Watched watched(run);
  using Counts = LearningHealth::Counts;
  EXPECT_EQ(watched.watch.observe_filter(0, {.num_sampled = 59, .num_kept = 6, .num_wanted = 6}), Counts());
  for (int64_t rollout = 1; rollout < 4; ++rollout) {
    EXPECT_EQ(watched.watch.observe_filter(rollout, {.num_sampled = 60, .num_kept = 6, .num_wanted = 6}),
              (Counts{{"fault/filter_drops_most", 54}}));
  }
  ASSERT_EQ(watched.warnings.size(), 1U);
  EXPECT_NE(
      watched.warnings[0].find("rollout 2: --dynamic-sampling-filter-path nonzero_std kept 6 of 60 groups, 10 are "
                               "sampled for each that is trained on"),
      std::string::npos)
      << watched.warnings[0];
  EXPECT_EQ(watched.watch.observe_filter(4, {.num_sampled = 12, .num_kept = 4, .num_wanted = 6}),
            (Counts{{"fault/too_few_groups", 2}}));
  ASSERT_EQ(watched.warnings.size(), 2U);
  EXPECT_NE(watched.warnings[1].find("rollout 5: of 12 groups --dynamic-sampling-filter-path nonzero_std kept 4, fewer "
                                     "than --rollout-batch-size 6"),
            std::string::npos)
      << watched.warnings[1];
}

TEST(LearningHealth, ExplainsWrongAnswersByTheirCut) {
  SimulatedRun run(9);
  run.make_large_enough();
  Watched watched(run);
  for (int64_t index = 0; index < 2; ++index) {
    go(run, watched, index, each([](SimulatedRun& r, Sample& s) {
         truncate(r, s);
         s.reward = 0.0;
       }));
  }
  ASSERT_EQ(watched.warnings.size(), 2U) << testing::PrintToString(watched.warnings);
  EXPECT_NE(watched.warnings[0].find("so no answer was ever finished: raise --rollout-max-response-len"),
            std::string::npos)
      << watched.warnings[0];
  EXPECT_NE(watched.warnings[1].find("most likely because all"), std::string::npos) << watched.warnings[1];
}

TEST(LearningHealth, KnowsWhenCutCompletionsAreWanted) {
  SimulatedRun run(13);
  run.make_large_enough();
  run.settings.ignore_eos = true;
  Watched watched(run);
  for (int64_t index = 0; index < 3; ++index) go(run, watched, index, each(truncate));
  EXPECT_TRUE(watched.warnings.empty()) << testing::PrintToString(watched.warnings);
}

TEST(LearningHealth, KnowsTheScheduleOfTheLearningRate) {
  const auto warnings = [](double lr, int64_t warmup_steps, int64_t num_steps, const std::vector<double>& rates) {
    SimulatedRun run(1);
    run.settings.lr = lr;
    run.settings.lr_warmup_steps = warmup_steps;
    run.settings.num_steps = num_steps;
    Watched watched(run);
    for (size_t step = 0; step < rates.size(); ++step)
      watched.watch.observe_step(static_cast<int64_t>(step), {}, rates[step]);
    return watched.warnings;
  };
  EXPECT_TRUE(warnings(1e-6, 2, 10, {0.0, 5e-7, 1e-6}).empty());
  EXPECT_EQ(warnings(1e-6, 2, 1, {0.0}).size(), 1U);
  EXPECT_EQ(warnings(0.0, 2, 10, {0.0, 0.0, 0.0}).size(), 1U);
  const std::vector<std::string> decayed = warnings(1e-6, 0, 10, {1e-6, 5e-7, 0.0, 0.0});
  ASSERT_EQ(decayed.size(), 1U);
  EXPECT_NE(decayed[0].find("optimizer step 3: the learning rate has fallen to 0 with 8 of 10 steps still to come"),
            std::string::npos)
      << decayed[0];
}

}  // namespace
}  // namespace tandem::rl
