// Checks how bad lines are counted that later phases find than the reading of the file.
#include "data/lines.h"

#include <gtest/gtest.h>

namespace tandem::data {
namespace {

TEST(BadLines, BeginWithTheFirstInTheFileInWhateverOrderTheyCome) {
  BadLines bad;
  bad.add(5, "e");
  EXPECT_EQ(bad.first_line, 5);
  bad.add(7, "g");
  bad.add(2, "b");
  bad.add(3, "c");
  EXPECT_EQ(bad.count, 4);
  EXPECT_EQ(bad.first_line, 2);
  EXPECT_EQ(bad.messages, (std::vector<std::string>{"b", "e", "g", "c"}));
}

TEST(BadLines, KeepTheMessagesOfTen) {
  BadLines bad;
  for (int64_t line = 20; line < 40; ++line) bad.add(line, std::to_string(line));
  ASSERT_EQ(bad.messages.size(), 10U);
  EXPECT_EQ(bad.messages.back(), "29");
  bad.add(4, "4");
  EXPECT_EQ(bad.count, 21);
  ASSERT_EQ(bad.messages.size(), 10U);
  EXPECT_EQ(bad.messages.front(), "4");
  EXPECT_EQ(bad.messages.back(), "28");
}

TEST(BadLines, NameTheFlagThatCountsThem) {
  EXPECT_STREQ(bad_line_error("data.jsonl:1: is wrong").what(),
               "data.jsonl:1: is wrong (--skip-bad-lines counts such lines instead)");
}

}  // namespace
}  // namespace tandem::data
