// Tests that the groups of a rollout of dynamic sampling never depend on timing.
#include "groups/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tandem/error.h"

namespace tandem::groups {
namespace {

// Draws and decides as a rollout does, in an order that `random` chooses. Returns the most that were under way at once.
int64_t select(Schedule& selection, const std::vector<bool>& is_kept, std::mt19937& random) {
  std::vector<size_t> undecided;
  int64_t most = 0;
  while (!selection.is_over()) {
    for (int64_t left = selection.num_to_draw(); left > 0; --left) {
      undecided.push_back(selection.num_drawn());
      selection.draw();
    }
    most = std::max(most, std::ssize(undecided));
    const size_t pick = random() % undecided.size();
    const size_t group = undecided[pick];
    undecided.erase(undecided.begin() + static_cast<std::ptrdiff_t>(pick));
    if (selection.may_be_taken(group)) selection.decide(group, is_kept.at(group));
    std::erase_if(undecided, [&](size_t other) { return !selection.may_be_taken(other); });
  }
  return most;
}

TEST(Schedule, TakesTheFirstKeptGroupsWheneverTheyAreDecided) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto wanted = static_cast<int64_t>(1 + random() % 8);
    const auto one_of = static_cast<uint32_t>(1 + random() % 5);
    std::vector<bool> is_kept(5000);
    for (size_t i = 0; i < is_kept.size(); ++i) is_kept[i] = random() % one_of == 0;
    std::vector<size_t> expected;
    for (size_t i = 0; std::ssize(expected) < wanted; ++i) {
      if (is_kept[i]) expected.push_back(i);
    }
    for (const int64_t more : {0, 1, 7, 40}) {
      Schedule selection(wanted, wanted + more);
      EXPECT_LE(select(selection, is_kept, random), wanted + more);
      EXPECT_EQ(selection.taken(), expected);
      EXPECT_EQ(selection.num_judged(), expected.back() + 1);
      EXPECT_EQ(selection.num_to_draw(), 0);
      // Nothing is drawn in vain where no more than the wanted groups are kept or under way.
      if (more == 0) {
        EXPECT_EQ(selection.num_drawn(), selection.num_judged());
      }
    }
  }
}

// The search through groups that are decided one after the other.
struct Searched {
  std::vector<size_t> taken;
  size_t num_judged = 0;
};

Searched search(const std::vector<bool>& is_kept, int64_t wanted, const SearchLimits& limits) {
  Searched found;
  int64_t dropped_in_a_row = 0;
  while (std::ssize(found.taken) < wanted && static_cast<int64_t>(found.num_judged) < limits.max_groups &&
         dropped_in_a_row < limits.max_dropped_in_a_row) {
    dropped_in_a_row = is_kept.at(found.num_judged) ? 0 : dropped_in_a_row + 1;
    if (dropped_in_a_row == 0) found.taken.push_back(found.num_judged);
    ++found.num_judged;
  }
  return found;
}

TEST(Schedule, ALimitEndsTheSearchAtTheSameGroupWheneverTheyAreDecided) {
  int64_t num_short = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto wanted = static_cast<int64_t>(1 + random() % 6);
    const auto one_of = static_cast<uint32_t>(2 + random() % 6);
    std::vector<bool> is_kept(200);
    for (size_t i = 0; i < is_kept.size(); ++i) is_kept[i] = random() % one_of == 0;
    SearchLimits limits;
    if (seed % 2 == 0) limits.max_groups = wanted + static_cast<int64_t>(random() % 20);
    if (seed % 3 == 0 || seed % 2 == 1) limits.max_dropped_in_a_row = static_cast<int64_t>(1 + random() % 8);
    const Searched expected = search(is_kept, wanted, limits);
    num_short += std::ssize(expected.taken) < wanted ? 1 : 0;
    for (const int64_t more : {0, 1, 7, 40}) {
      Schedule selection(wanted, wanted + more, limits);
      select(selection, is_kept, random);
      EXPECT_EQ(selection.taken(), expected.taken);
      EXPECT_EQ(selection.num_judged(), expected.num_judged);
      EXPECT_EQ(selection.is_full(), std::ssize(expected.taken) == wanted);
      EXPECT_EQ(selection.num_to_draw(), 0);
      EXPECT_FALSE(selection.may_be_taken(expected.num_judged));
      EXPECT_LE(static_cast<int64_t>(selection.num_drawn()), limits.max_groups);
    }
  }
  EXPECT_GT(num_short, 100);
}

TEST(Schedule, WaitsForTheGroupsBeforeTheLastOneTaken) {
  Schedule selection(1, 4);
  for (int i = 0; i < 4; ++i) selection.draw();
  EXPECT_EQ(selection.num_to_draw(), 0);
  selection.decide(1, false);
  EXPECT_EQ(selection.num_judged(), 0U) << "the group before it may still be kept";
  EXPECT_EQ(selection.num_to_draw(), 1);
  selection.decide(0, false);
  EXPECT_EQ(selection.num_judged(), 2U);
  selection.decide(3, true);
  EXPECT_FALSE(selection.is_full()) << "group 2 is not decided";
  EXPECT_FALSE(selection.may_be_taken(4));
  EXPECT_EQ(selection.num_to_draw(), 0);
  selection.decide(2, true);
  EXPECT_TRUE(selection.is_full());
  EXPECT_EQ(selection.taken(), std::vector<size_t>{2});
  EXPECT_FALSE(selection.may_be_taken(3));
  EXPECT_THROW(selection.decide(2, true), BugError);
}

}  // namespace
}  // namespace tandem::groups
