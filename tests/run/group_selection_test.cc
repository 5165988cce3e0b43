// Which groups make up a rollout of dynamic sampling: never a matter of timing.
#include "run/group_selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tandem/error.h"

namespace tandem::run {
namespace {

// Draws and decides as a rollout does, in an order that `random` chooses. Returns the most that were under way at once.
int64_t select(GroupSelection& selection, const std::vector<bool>& is_kept, std::mt19937& random) {
  std::vector<size_t> undecided;
  int64_t most = 0;
  while (!selection.is_full()) {
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

TEST(GroupSelection, TakesTheFirstKeptGroupsWheneverTheyAreDecided) {
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
      GroupSelection selection(wanted, wanted + more);
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

TEST(GroupSelection, CountsDropsInARow) {
  GroupSelection selection(1, 4);
  for (int i = 0; i < 4; ++i) selection.draw();
  EXPECT_EQ(selection.num_to_draw(), 0);
  selection.decide(1, false);
  EXPECT_EQ(selection.num_dropped_in_a_row(), 0) << "the group before it may still be kept";
  EXPECT_EQ(selection.num_to_draw(), 1);
  selection.decide(0, false);
  EXPECT_EQ(selection.num_dropped_in_a_row(), 2);
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
}  // namespace tandem::run
