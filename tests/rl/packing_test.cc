// Micro-batches hold every sample once, keep the budget and count prompts once.
#include "rl/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace tandem::rl {
namespace {

std::vector<Sample> random_groups(std::mt19937& random) {
  std::vector<Sample> samples;
  const uint32_t num_groups = 1 + random() % 12;
  for (uint64_t group = 0; group < num_groups; ++group) {
    const SharedPrompt prompt = make_prompt(std::vector<int32_t>(1 + random() % 30, static_cast<int32_t>(group)));
    const uint32_t group_size = 1 + random() % 8;
    for (uint32_t i = 0; i < group_size; ++i) {
      Sample& sample = samples.emplace_back();
      sample.group_id = group;
      sample.prompt = prompt;
      sample.completion.resize(random() % 40);
    }
  }
  return samples;
}

std::vector<const Sample*> pointers_to(const std::vector<Sample>& samples) {
  std::vector<const Sample*> result;
  for (const Sample& sample : samples) result.push_back(&sample);
  return result;
}

// Counts the tokens that the trainer's forward would run.
int64_t count_tokens(const std::vector<Sample>& samples, const MicroBatch& batch) {
  int64_t num_tokens = 0;
  std::set<uint64_t> groups;
  for (const int64_t i : batch.samples) {
    const Sample& sample = samples[static_cast<size_t>(i)];
    num_tokens += static_cast<int64_t>(sample.completion.size());
    if (groups.insert(sample.group_id).second) num_tokens += static_cast<int64_t>(sample.prompt->tokens.size());
  }
  return num_tokens;
}

TEST(Packing, KeepsEverySampleOnceWithinBudgetAndGroupMatesAdjacent) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int draw = 0; draw < 500; ++draw) {
    const std::vector<Sample> samples = random_groups(random);
    const int64_t max_tokens = 1 + random() % 200;
    std::multiset<int64_t> seen;
    for (const MicroBatch& batch : split_into_micro_batches(pointers_to(samples), {.max_tokens = max_tokens})) {
      ASSERT_FALSE(batch.samples.empty());
      ASSERT_EQ(batch.num_tokens, count_tokens(samples, batch));
      ASSERT_TRUE(batch.num_tokens <= max_tokens || batch.samples.size() == 1)
          << batch.num_tokens << " of " << max_tokens;
      seen.insert(batch.samples.begin(), batch.samples.end());
      // Since indices ascend and a group's samples are adjacent in the step, they are adjacent here too.
      ASSERT_TRUE(std::is_sorted(batch.samples.begin(), batch.samples.end()));
    }
    ASSERT_EQ(seen.size(), samples.size());
    ASSERT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), samples.size());
  }
}

// Returns the samples of one group, with a completion of each length.
std::vector<Sample> group_of(uint64_t group, size_t prompt_tokens, const std::vector<size_t>& completion_tokens) {
  const SharedPrompt prompt = make_prompt(std::vector<int32_t>(prompt_tokens, 1));
  std::vector<Sample> samples(completion_tokens.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].group_id = group;
    samples[i].prompt = prompt;
    samples[i].completion.resize(completion_tokens[i]);
  }
  return samples;
}

std::vector<Sample> joined(const std::vector<std::vector<Sample>>& groups) {
  std::vector<Sample> samples;
  for (const std::vector<Sample>& group : groups) samples.insert(samples.end(), group.begin(), group.end());
  return samples;
}

TEST(Packing, CountsAPromptOnceAndFillsTheFirstBatchWithRoom) {
  const std::vector<Sample> samples =
      joined({group_of(0, 10, {5, 5}), group_of(1, 10, {15}), group_of(2, 2, {3}), group_of(3, 4, {1})});
  const std::vector<MicroBatch> batches = split_into_micro_batches(pointers_to(samples), {.max_tokens = 30});
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_EQ(batches[0].samples, (std::vector<int64_t>{0, 1, 3, 4}));
  EXPECT_EQ(batches[0].num_tokens, 30);
  EXPECT_EQ(batches[1].samples, (std::vector<int64_t>{2}));
  EXPECT_EQ(batches[1].num_tokens, 25);
}

TEST(Packing, SplitsAGroupLongerThanTheBudgetAndRepeatsItsPrompt) {
  const std::vector<Sample> samples = group_of(0, 4, {6, 6, 6});
  const std::vector<MicroBatch> batches = split_into_micro_batches(pointers_to(samples), {.max_tokens = 16});
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_EQ(batches[0].samples, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(batches[0].num_tokens, 16);
  EXPECT_EQ(batches[1].num_tokens, 10);
}

// The rests of groups that are a little longer than the budget share micro-batches.
TEST(Packing, RestsOfSplitGroupsLieTogether) {
  std::vector<std::vector<Sample>> groups;
  for (uint64_t g = 0; g < 12; ++g) groups.push_back(group_of(g, 8, std::vector<size_t>(8, 32)));
  const std::vector<Sample> samples = joined(groups);
  const std::vector<MicroBatch> batches = split_into_micro_batches(pointers_to(samples), {.max_tokens = 8 + 7 * 32});
  ASSERT_EQ(batches.size(), 12U + 3U);  // five of the rests, of 40 tokens, fit into one
  EXPECT_EQ(batches[1].samples, (std::vector<int64_t>{7, 15, 23, 31, 39}));
}

TEST(Packing, GivesASampleBeyondTheBudgetItsOwnBatch) {
  const std::vector<Sample> samples = joined({group_of(0, 4, {96}), group_of(1, 1, {1})});
  const std::vector<MicroBatch> batches = split_into_micro_batches(pointers_to(samples), {.max_tokens = 10});
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_EQ(batches[0].num_tokens, 100);
}

// After an epoch the next one may begin with the same prompt: that is another group, which is graded and packed
// apart.
TEST(Packing, APromptThatTwoGroupsHaveIsCountedInEach) {
  std::vector<Sample> samples = joined({group_of(0, 10, {5, 5}), group_of(1, 10, {5})});
  samples[2].prompt = samples[0].prompt;
  EXPECT_TRUE(share_prompt(samples[0], samples[1]));
  EXPECT_FALSE(share_prompt(samples[1], samples[2]));
  EXPECT_EQ(split_into_micro_batches(pointers_to(samples), {.max_tokens = 100}).at(0).num_tokens, 20 + 15);
}

// The number of micro-batches is what the budget needs, rounded up, and their sizes are near; a multiple of 1 gives the
// budget's own split.
TEST(Packing, AMultipleBalancesMicroBatches) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const std::vector<Sample> samples = random_groups(random);
    const int64_t max_tokens = 20 + static_cast<int64_t>(random() % 200);
    const auto plain = split_into_micro_batches(pointers_to(samples), {.max_tokens = max_tokens});
    const auto largest = [](const std::vector<MicroBatch>& batches) {
      int64_t most = 0;
      for (const MicroBatch& batch : batches) most = std::max(most, batch.num_tokens);
      return most;
    };
    for (const int64_t multiple : {1, 2, 3, 8}) {
      const auto split =
          split_into_micro_batches(pointers_to(samples), {.max_tokens = max_tokens, .multiple = multiple});
      const int64_t most = (std::ssize(plain) + multiple - 1) / multiple * multiple;
      EXPECT_LE(std::ssize(split), most);
      EXPECT_LE(largest(split), largest(plain));
      if (multiple == 1) {
        EXPECT_EQ(std::ssize(split), std::ssize(plain));
      }
      std::set<int64_t> seen;
      for (const MicroBatch& batch : split) seen.insert(batch.samples.begin(), batch.samples.end());
      EXPECT_EQ(seen.size(), samples.size());
    }
  }
  const std::vector<Sample> eight = group_of(0, 10, std::vector<size_t>(8, 5));
  const auto batches = split_into_micro_batches(pointers_to(eight), {.max_tokens = 1000, .multiple = 4});
  ASSERT_EQ(batches.size(), 4U);
  for (const MicroBatch& batch : batches) EXPECT_EQ(batch.num_tokens, 10 + 2 * 5);
}

TEST(Packing, OfNothingIsNothing) { EXPECT_TRUE(split_into_micro_batches({}, {.max_tokens = 10}).empty()); }

}  // namespace
}  // namespace tandem::rl
