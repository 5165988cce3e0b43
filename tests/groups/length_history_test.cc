// Checks what a run expects of the lengths of a group, and when it is certain of them.
#include "groups/length_history.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace tandem::groups {
namespace {

session::PromptLine line_of(int32_t token) { return {.record = {}, .prompt = rl::make_prompt({token, token})}; }

Group group_of(const session::PromptLine& line, const std::vector<size_t>& lengths) {
  Group group = {.line = &line, .members = {}, .graded = {}};
  for (const size_t length : lengths) group.members.emplace_back().sample.completion.assign(length, 7);
  return group;
}

TEST(LengthHistory, NothingIsCertainBeforeAnythingWasSampled) {
  const session::PromptLine line = line_of(1);
  const GroupLength length = LengthHistory().expected(*line.prompt, 400);
  EXPECT_EQ(length.completion, 100) << "a quarter of what it may have";
  EXPECT_EQ(length.prompt, 2);
  EXPECT_FALSE(length.is_certain);
}

TEST(LengthHistory, APromptIsCertainIfItsCompletionsWereAlikeLastTime) {
  const session::PromptLine alike = line_of(1), unlike = line_of(2), unseen = line_of(3);
  LengthHistory history;
  history.remember(group_of(alike, {80, 100, 90}));
  history.remember(group_of(unlike, {79, 100, 90}));
  EXPECT_TRUE(history.expected(*alike.prompt, 400).is_certain) << "within a fifth of the longest";
  EXPECT_FALSE(history.expected(*unlike.prompt, 400).is_certain);
  EXPECT_EQ(history.expected(*unlike.prompt, 400).completion, 100);
  history.remember(group_of(alike, {10, 300, 20}));
  history.remember(group_of(unlike, {50, 50, 50}));
  EXPECT_FALSE(history.expected(*alike.prompt, 400).is_certain) << "the last time counts";
  EXPECT_EQ(history.expected(*alike.prompt, 400).completion, 300);
  EXPECT_TRUE(history.expected(*unlike.prompt, 400).is_certain);
  EXPECT_EQ(history.expected(*unlike.prompt, 400).completion, 50);
  EXPECT_EQ(history.expected(*unseen.prompt, 400).completion, 175) << "the average";
}

TEST(LengthHistory, APromptThatWasNotSampledIsCertainIfAllWereAlike) {
  const session::PromptLine one = line_of(1), other = line_of(2), unseen = line_of(3);
  LengthHistory history;
  history.remember(group_of(one, {24, 24}));
  EXPECT_TRUE(history.expected(*unseen.prompt, 400).is_certain);
  EXPECT_EQ(history.expected(*unseen.prompt, 400).completion, 24);
  history.remember(group_of(other, {40, 40}));
  EXPECT_FALSE(history.expected(*unseen.prompt, 400).is_certain) << "it may be like the one or the other";
  EXPECT_TRUE(history.expected(*other.prompt, 400).is_certain);
}

}  // namespace
}  // namespace tandem::groups
