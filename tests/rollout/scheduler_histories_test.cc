// Random workloads in caches that are too small for them: every sequence has the tokens that it would have alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "tests/rollout/scheduler_workload.h"

namespace tandem::rollout {
namespace {

class SchedulerLookahead : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Lookahead, SchedulerLookahead, testing::Values(0, 1), testing::PrintToStringParamName());

TEST_P(SchedulerLookahead, KeepsEveryHistoryUnderRandomWorkloads) {
  SchedulerStats total;
  int64_t num_dropped = 0, num_drafts = 0, num_right = 0;
  for (uint32_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto up_to = [&random](int64_t n) { return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    const int64_t num_blocks = 12 + up_to(12);
    Workload workload(
        {.num_blocks = num_blocks, .max_batch_tokens = up_to(60), .max_running = up_to(24), .lookahead = GetParam()});
    if (seed % 2 == 0) workload.draft(seed, 80);
    const int64_t num_groups = up_to(12);
    int64_t num_added = 0;
    while (num_added < num_groups || !workload.scheduler().idle()) {
      const uint64_t action = random() % 400;
      if (num_added < num_groups && action < 40) {
        std::vector<int32_t> prompt(static_cast<size_t>(up_to(60)));
        for (int32_t& token : prompt) token = static_cast<int32_t>(random() % kVocab);
        workload.add(prompt, up_to(6), up_to(132));  // at most 192 tokens: 12 blocks
        ++num_added;
      } else if (action == 40) {
        if (const auto id = workload.any_sequence(random)) workload.abort_group_of(*id);
      } else {
        workload.step();
      }
      if (testing::Test::HasFailure()) return;
    }
    workload.run_to_end();
    const SchedulerStats& stats = workload.scheduler().stats();
    num_dropped += workload.num_dropped();
    total.preemptions += stats.preemptions;
    total.copies_on_write += stats.copies_on_write;
    total.recomputed_tokens += stats.recomputed_tokens;
    total.shared_prompt_tokens += stats.shared_prompt_tokens;
    num_drafts += workload.num_drafts();
    num_right += workload.num_right();
  }
  // The workloads reach the cases that they are meant to test.
  EXPECT_GT(num_drafts, 5000);
  EXPECT_GT(num_right, 2000);
  EXPECT_GT(num_drafts - num_right, 1000);
  EXPECT_GT(total.preemptions, 100);
  EXPECT_GT(total.copies_on_write, 500);
  EXPECT_GT(total.recomputed_tokens, 1000);
  EXPECT_GT(total.shared_prompt_tokens, 1000);
  EXPECT_EQ(num_dropped > 100, GetParam() > 0) << num_dropped;
}

// The same where tokens see a window, in caches that hold few sequences as a whole: prompts and completions longer than
// the cache, begun sequences, and turns of conversations whose kept blocks lack the first ones.
void expect_histories_with_a_window(int64_t lookahead, bool all_have_it) {
  SchedulerStats total;
  int64_t num_long = 0;
  for (uint32_t seed = 1; seed <= 80; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto up_to = [&random](int64_t n) { return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    const int64_t window = 1 + up_to(60), max_batch_tokens = up_to(60);
    std::vector<BlockKind> kinds = {{.window = window}};
    if (!all_have_it) kinds.insert(kinds.begin(), BlockKind());
    kinds[seed % 3 == 0 ? kinds.size() - 1 : 0].tokens *= all_have_it ? 1 : int64_t{1} << random() % 3;
    const int64_t of_window = (window + max_batch_tokens + 30) / 16 + up_to(5);
    // Layers without a window keep all tokens of the longest sequence: prompt, begun tokens and budget.
    const int64_t longest_prompt = all_have_it ? 300 : 150, most_drawn = all_have_it ? 150 : 400;
    const int64_t num_blocks = of_window + (all_have_it ? 0 : (longest_prompt + 80 + most_drawn) / kinds[0].tokens + 1);
    Workload workload({.num_blocks = num_blocks,
                       .max_batch_tokens = max_batch_tokens,
                       .max_running = up_to(24),
                       .lookahead = lookahead,
                       .kinds = kinds});
    if (seed % 2 == 0) workload.draft(seed, 80);
    const auto drawn = [&](int64_t most) {
      std::vector<int32_t> prompt(static_cast<size_t>(up_to(most)));
      for (int32_t& token : prompt) token = 1 + static_cast<int32_t>(random() % (kVocab - 1));
      return prompt;
    };
    const int64_t num_groups = up_to(12);
    int64_t num_added = 0;
    while (num_added < num_groups || !workload.scheduler().idle()) {
      const uint64_t action = random() % 400;
      if (num_added < num_groups && action < 40) {
        const std::vector<int32_t> prompt = drawn(longest_prompt);
        num_long += std::ssize(prompt) > of_window * 16 ? 1 : 0;
        std::vector<Workload::Added> samples;
        for (int64_t n = up_to(5); n > 0; --n) {
          samples.push_back({.num_begun = random() % 3 == 0 ? up_to(80) : 0, .budget = up_to(most_drawn)});
        }
        if (random() % 3 == 0) {
          workload.add_turn(prompt, {.group_id = 1, .sample_id = random() % 3}, up_to(40));
        } else {
          workload.add(prompt, samples);
        }
        ++num_added;
      } else if (action == 40) {
        if (const auto id = workload.any_sequence(random)) workload.abort_group_of(*id);
      } else {
        workload.step();
      }
      for (auto& [owner, tokens] : workload.take_turns()) {  // most conversations go on
        std::vector<int32_t> next = tokens;
        if (random() % 4 == 0) next.resize(next.size() / 2 + 1);
        for (const int32_t token : drawn(20)) next.push_back(token);
        if (random() % 4 != 0 && workload.scheduler().fits(std::ssize(next) + 40)) {
          workload.add_turn(next, owner, up_to(40));
        }
      }
      if (testing::Test::HasFailure()) return;
    }
    for (uint64_t sample = 0; sample < 3; ++sample) workload.scheduler().release_prefix(sample);
    workload.run_to_end();
    const SchedulerStats& stats = workload.scheduler().stats();
    total.preemptions += stats.preemptions;
    total.copies_on_write += stats.copies_on_write;
    total.kept_tokens += stats.kept_tokens;
    total.shared_prompt_tokens += stats.shared_prompt_tokens;
  }
  EXPECT_GT(num_long, 50);
  // Layers with a window ask for no more blocks as a sequence grows, so few are preempted.
  EXPECT_GT(total.preemptions, all_have_it ? 30 : 8);
  EXPECT_GT(total.copies_on_write, 100);
  EXPECT_GT(total.kept_tokens, 100);
  EXPECT_GT(total.shared_prompt_tokens, 1000);
}

TEST_P(SchedulerLookahead, KeepsEveryHistoryWithAWindow) { expect_histories_with_a_window(GetParam(), true); }
TEST_P(SchedulerLookahead, KeepsEveryHistoryWithAWindowInSomeLayers) {
  expect_histories_with_a_window(GetParam(), false);
}

// Groups of samples with tokens already and without, each with a budget of its own, in a cache that is too small for
// all of them: every history is right, and a begun token is prefilled once, unless its blocks are given up.
TEST_P(SchedulerLookahead, KeepsEveryHistoryOfBegunSequences) {
  SchedulerStats total;
  int64_t num_begun = 0, num_begun_preempted = 0;
  for (uint32_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto below = [&random](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    Workload workload({.num_blocks = 12 + below(8),
                       .max_batch_tokens = 8 + below(60),
                       .max_running = 4 + below(20),
                       .lookahead = GetParam()});
    if (seed % 3 == 0) workload.draft(seed, 80);
    const bool all_begun = seed % 2 == 1;
    int64_t num_left = 1 + below(12);
    while (num_left > 0 || !workload.scheduler().idle()) {
      if (num_left > 0 && below(10) == 0) {
        std::vector<int32_t> prompt(static_cast<size_t>(1 + below(24)));
        for (int32_t& token : prompt) token = static_cast<int32_t>(below(kVocab));
        std::vector<Workload::Added> samples;  // at most 192 tokens each: 12 blocks
        for (int64_t n = 1 + below(6); n > 0; --n)
          samples.push_back({.num_begun = !all_begun && below(2) == 0 ? 0 : 1 + below(31),
                             .budget = below(4) == 0 ? 1 + below(4) : 64 + below(73)});
        workload.add(prompt, samples);
        --num_left;
      } else {
        workload.step();
      }
      if (testing::Test::HasFailure()) return;
    }
    workload.run_to_end();
    const SchedulerStats& stats = workload.scheduler().stats();
    EXPECT_EQ(stats.resumed_tokens, workload.num_begun());
    num_begun += workload.num_begun();
    total.preemptions += stats.preemptions;
    if (all_begun) num_begun_preempted += stats.preemptions;
    total.recomputed_tokens += stats.recomputed_tokens;
    total.shared_prompt_tokens += stats.shared_prompt_tokens;
  }
  EXPECT_GT(num_begun, 10000);
  EXPECT_GT(total.preemptions, 60);
  EXPECT_GT(num_begun_preempted, 30);
  EXPECT_GT(total.recomputed_tokens, 1000);
  EXPECT_GT(total.shared_prompt_tokens, 1000);
}

// There are conversations of groups that begin alike, with tools of any length between the turns, now and then a turn
// that goes back, and a cache that is too small for all of them. Every history is right, whatever was kept.
TEST_P(SchedulerLookahead, KeepsEveryHistoryOverTurns) {
  int64_t num_kept = 0, num_dropped = 0, num_shared = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int64_t num_blocks = 14 + static_cast<int64_t>(random() % 60);
    Workload workload({.num_blocks = num_blocks,
                       .max_batch_tokens = 1 + static_cast<int64_t>(random() % 90),
                       .max_running = 1 + static_cast<int64_t>(random() % 8),
                       .lookahead = GetParam()});
    const auto random_tokens = [&](size_t count) {
      std::vector<int32_t> tokens(count);
      for (int32_t& token : tokens) token = 1 + static_cast<int32_t>(random() % (kVocab - 1));
      return tokens;
    };
    if (seed % 2 == 0) workload.draft(seed, 80);
    std::map<uint64_t, int> turns_left;
    for (uint64_t group = 0; group < 3; ++group) {
      const std::vector<int32_t> prompt = random_tokens(1 + random() % 60);
      for (uint64_t i = 0; i < 3; ++i) {
        turns_left[group * 3 + i] = 1 + static_cast<int>(random() % 4);
        workload.add_turn(prompt, {.group_id = group, .sample_id = group * 3 + i},
                          1 + static_cast<int64_t>(random() % 20));
      }
      workload.add(random_tokens(1 + random() % 30), 2, 5);  // adds a group in one go beside them
    }
    while (workload.step()) {
      for (auto& [owner, history] : workload.take_turns()) {
        const size_t room = 200 - std::min<size_t>(history.size(), 200);
        if (--turns_left.at(owner.sample_id) == 0 || room < 2) {
          workload.scheduler().release_prefix(owner.sample_id);
          continue;
        }
        std::vector<int32_t> next = history;
        if (random() % 4 == 0) next.resize(1 + random() % history.size());
        const std::vector<int32_t> tool = random_tokens(random() % std::min<size_t>(room - 1, 40));
        next.insert(next.end(), tool.begin(), tool.end());
        workload.add_turn(next, owner, 1 + static_cast<int64_t>(random() % (200 - next.size() > 20 ? 20 : 1)));
      }
      if (std::optional<SequenceId> id = workload.any_sequence(random); id && random() % 60 == 0)
        workload.abort_group_of(*id);
    }
    workload.scheduler().release_prefixes();
    workload.run_to_end();
    num_kept += workload.scheduler().stats().kept_tokens;
    num_dropped += workload.scheduler().stats().kept_dropped;
    num_shared += workload.scheduler().stats().shared_prompt_tokens;
  }
  EXPECT_GT(num_kept, 1000);
  EXPECT_GT(num_dropped, 10);
  EXPECT_GT(num_shared, 100);
}

}  // namespace
}  // namespace tandem::rollout
