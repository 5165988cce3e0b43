// A rollout as bytes between ranks: every field comes back as it was, and bytes that are no message are refused.
#include "sampling/processes/rollout_message.h"

#include <gtest/gtest.h>

#include <map>

#include "base/wire.h"
#include "tandem/error.h"
#include "tests/sampling/drawn_samples.h"

namespace tandem::sampling {
namespace {

constexpr size_t kNumPrompts = 12;

rl::SharedPrompt prompt_of(size_t group) {
  static const std::vector<rl::SharedPrompt> prompts = [] {
    std::vector<rl::SharedPrompt> result;
    for (int32_t i = 0; i < static_cast<int32_t>(kNumPrompts); ++i) result.push_back(rl::make_prompt({i, 7, i + 1}));
    return result;
  }();
  if (group >= prompts.size()) throw EnvironmentError("a group that is none");
  return prompts[group];
}

struct DrawnRollout {
  Rollout rollout;
  std::vector<size_t> groups;

  explicit DrawnRollout(uint64_t seed) {
    Drawn drawn(seed);
    const size_t n = 1 + drawn.below(3);
    for (size_t group = drawn.below(3); group < kNumPrompts; group += 1 + drawn.below(6)) {
      groups.push_back(group);
      for (size_t i = 0; i < n; ++i) {
        rollout.samples.push_back(drawn_sample(drawn));
        rollout.samples.back().prompt = prompt_of(group);
        rollout.grades.push_back(drawn_grade(drawn));
      }
    }
    rollout.stats = {.generated_tokens = drawn.number<int64_t>(), .num_blocks = drawn.number<int64_t>()};
    rollout.is_sampled = drawn.flag();
    rollout.seconds = drawn.number<double>();
    rollout.num_ranks = 2;
    rollout.num_workers = 3;
    rollout.num_lost_workers = 4;
    rollout.idle_share = drawn.number<double>();
    rollout.num_failed = 5;
    rollout.num_dropped = 6;
    rollout.num_repeated = 7;
    rollout.num_restarts = 8;
    rollout.num_generate_restarts = 9;
    rollout.num_generate_repeated = 10;
    rollout.num_unnamed = 11;
    rollout.first_failure = drawn.text();
    if (drawn.flag()) {
      rollout.filtered.emplace(FilteredGroups{.num_groups = 12,
                                              .num_kept = 13,
                                              .num_wanted = 14,
                                              .num_judged = 15,
                                              .dropped = {{"why", 16}, {drawn.text() + "!", 17}},
                                              .num_failures = 18,
                                              .first_failure = drawn.text(),
                                              .mean_reward = drawn.number<double>(),
                                              .has_mean_reward = drawn.flag(),
                                              .num_excess = 19,
                                              .num_aborted = 20});
    }
  }
  std::string bytes() const { return to_bytes(rollout, groups); }
};

bool reads(std::string_view bytes) {
  try {
    rollout_of(bytes, prompt_of);
    return true;
  } catch (const EnvironmentError&) {
    return false;
  }
}

// Compares by hand, so that a field that is neither written nor read is missed.
void expect_same_rollout(const Rollout& a, const Rollout& b) {
  ASSERT_EQ(a.samples.size(), b.samples.size());
  for (size_t i = 0; i < a.samples.size(); ++i) {
    expect_same(a.samples[i], b.samples[i]);
    EXPECT_EQ(a.samples[i].prompt, b.samples[i].prompt) << "the same object";
  }
  ASSERT_EQ(a.grades.size(), b.grades.size());
  for (size_t i = 0; i < a.grades.size(); ++i) expect_same(a.grades[i], b.grades[i]);
  EXPECT_EQ(a.stats.generated_tokens, b.stats.generated_tokens);
  EXPECT_EQ(a.stats.num_blocks, b.stats.num_blocks);
  EXPECT_TRUE(same_bits(a.seconds, b.seconds) && same_bits(a.idle_share, b.idle_share));
  EXPECT_EQ(std::tie(a.is_sampled, a.num_ranks, a.num_workers, a.num_lost_workers, a.num_failed, a.num_dropped,
                     a.num_repeated, a.num_restarts, a.num_generate_restarts, a.num_generate_repeated, a.num_unnamed,
                     a.first_failure),
            std::tie(b.is_sampled, b.num_ranks, b.num_workers, b.num_lost_workers, b.num_failed, b.num_dropped,
                     b.num_repeated, b.num_restarts, b.num_generate_restarts, b.num_generate_repeated, b.num_unnamed,
                     b.first_failure));
  ASSERT_EQ(a.filtered.has_value(), b.filtered.has_value());
  if (!a.filtered) return;
  const FilteredGroups &x = *a.filtered, &y = *b.filtered;
  EXPECT_EQ(std::tie(x.num_groups, x.num_kept, x.num_wanted, x.num_judged, x.dropped, x.num_failures, x.first_failure,
                     x.has_mean_reward, x.num_excess, x.num_aborted),
            std::tie(y.num_groups, y.num_kept, y.num_wanted, y.num_judged, y.dropped, y.num_failures, y.first_failure,
                     y.has_mean_reward, y.num_excess, y.num_aborted));
  EXPECT_TRUE(same_bits(x.mean_reward, y.mean_reward));
}

TEST(RolloutMessage, BringsEveryFieldBitForBit) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const DrawnRollout sent(seed);
    const std::string bytes = sent.bytes();
    const std::optional<Rollout> read = rollout_of(bytes, prompt_of);
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(to_bytes(read, sent.groups), bytes);
    expect_same_rollout(*read, sent.rollout);
  }
}

TEST(RolloutMessage, SaysThatTheRolloutWasStopped) {
  EXPECT_FALSE(rollout_of(to_bytes(std::nullopt, {}), prompt_of).has_value());
}

TEST(RolloutMessage, MayHaveNoGroup) {
  Rollout nothing;
  nothing.filtered.emplace(FilteredGroups{.num_groups = 9, .num_wanted = 2, .dropped = {}, .first_failure = {}});
  const std::optional<Rollout> read = rollout_of(to_bytes(nothing, {}), prompt_of);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->filtered->num_missing(), 2) << "a filter that keeps nothing is every rank's error";
}

TEST(RolloutMessage, OfOtherPromptsIsRefused) {
  const DrawnRollout sent(1);
  try {
    rollout_of(sent.bytes(), [](size_t group) { return prompt_of((group + 1) % kNumPrompts); });
    ADD_FAILURE() << "it was taken";
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("another prompt for group"), std::string::npos) << error.what();
  }
}

TEST(RolloutMessage, ThatIsCutOrChangedIsRefused) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string bytes = DrawnRollout(seed).bytes();
    ASSERT_TRUE(reads(bytes));
    Drawn drawn(seed + 1000);
    for (size_t end = 0; end < bytes.size(); end += 1 + drawn.below(1 + bytes.size() / 200))
      EXPECT_FALSE(reads(std::string_view(bytes).substr(0, end))) << seed << " " << end;
    for (int i = 0; i < 300; ++i) {
      std::string changed = bytes;
      changed[drawn.below(changed.size())] ^= static_cast<char>(1 << drawn.below(8));
      EXPECT_FALSE(reads(changed)) << seed;
    }
    EXPECT_FALSE(reads(bytes + "x"));
    EXPECT_FALSE(reads(base::sealed(base::unsealed(bytes, kRolloutMessageFormat), kRolloutMessageFormat + 1)))
        << "another format";
  }
}

// A payload with the right checksum may be anything: it is read, or refused, within its bytes (ASan watches) and
// without memory for lengths that it only claims.
TEST(RolloutMessage, OfAnyPayloadIsReadOrRefusedWithinItsBytes) {
  int64_t num_read = 0, num_refused = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::string bytes = DrawnRollout(seed % 20).bytes();
    const std::string payload(base::unsealed(bytes, kRolloutMessageFormat));
    Drawn drawn(seed + 2000);
    for (int i = 0; i < 50; ++i)
      ++(reads(base::sealed(drawn.changed(payload), kRolloutMessageFormat)) ? num_read : num_refused);
  }
  EXPECT_GT(num_read, 100);
  EXPECT_GT(num_refused, 1000);
}

}  // namespace
}  // namespace tandem::sampling
