// Tests of stop strings that span tokens.
#include "rollout/stop_strings.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace tandem::rollout {
namespace {

// Returns the number of tokens up to the one that completes a stop string; 0 if none does.
size_t tokens_until_stop(const std::vector<std::string>& tokens, const std::vector<std::string>& stop) {
  std::string tail;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (completes_stop_string(tail, tokens[i], stop)) return i + 1;
  }
  return 0;
}

TEST(StopStrings, MatchAcrossTokens) {
  EXPECT_EQ(tokens_until_stop({"</th", "in", "k>", "x"}, {"</think>"}), 3U);
  EXPECT_EQ(tokens_until_stop({"a\n", "", "\nb"}, {"\n\n"}), 3U);
  EXPECT_EQ(tokens_until_stop({"aa", "ab", "aab"}, {"aaab"}), 2U);
  EXPECT_EQ(tokens_until_stop({"\xe2\x82", "\xac"}, {"\xe2\x82\xac"}), 2U);
  EXPECT_EQ(tokens_until_stop({"abc"}, {"zzzzzzzz", "b"}), 1U);
  EXPECT_EQ(tokens_until_stop({"ab", "c"}, {"abcd"}), 0U);
}

TEST(StopStrings, AgreeWithASearchInTheWholeText) {
  int matches = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto random_text = [&random](size_t length) {
      std::string text(length, 'a');
      for (char& c : text) c = static_cast<char>('a' + random() % 2);
      return text;
    };
    const std::vector<std::string> stop = {random_text(1 + random() % 12), random_text(6 + random() % 6)};
    std::vector<std::string> tokens;
    std::string text;
    size_t expected = 0;
    for (size_t i = 1; i <= 12; ++i) {
      tokens.push_back(random_text(random() % 4));
      text += tokens.back();
      const bool found = text.find(stop[0]) != std::string::npos || text.find(stop[1]) != std::string::npos;
      if (expected == 0 && found) expected = i;
    }
    EXPECT_EQ(tokens_until_stop(tokens, stop), expected);
    matches += expected > 0 ? 1 : 0;
  }
  EXPECT_GT(matches, 50);
  EXPECT_LT(matches, 290);
}

}  // namespace
}  // namespace tandem::rollout
