// Messages show foreign text on one safe line.
#include "base/message_text.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "tandem/error.h"

namespace tandem::base {
namespace {

TEST(MessageText, IsOneLineOfValidUtf8) {
  EXPECT_EQ(one_line("plain \"text\" \\ 'here' \xC3\xA9"), "plain \"text\" \\ 'here' \xC3\xA9");
  EXPECT_EQ(one_line("a\nb\tc\x01"), "a\\nb\\tc\\u0001");
  EXPECT_EQ(one_line("\xFF\xFF"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(one_line(""), "");
}

TEST(MessageText, IsCutOff) {
  EXPECT_EQ(one_line(std::string(100, 'x')), std::string(80, 'x') + "...");
  EXPECT_EQ(one_line(std::string(80, 'x')), std::string(80, 'x'));
  EXPECT_EQ(one_line("\xC3\xA9\xC3\xA9", 3), "\xC3\xA9\xEF\xBF\xBD...");
  EXPECT_LT(one_line(std::string(100, '\n')).size(), 90U);  // escapes count too
}

TEST(MessageText, PlacesCountCharactersFromOne) {
  EXPECT_EQ(place_in_text("f", "ab\nc\xC3\xA9x", 6), "f:2:3");
  EXPECT_EQ(place_in_text("f", "", 0, 7), "f:7:1");
}

// A key or a value with a line break in it once made an error of two lines, where each is promised to be one.
TEST(MessageText, KeepsAKeyThatIsGivenTwiceOnOneLine) {
  try {
    parse_json("{\"a\\nb\": 1, \"a\\nb\": 2}", "f");
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()), "f:1:13: the key \"a\\nb\" appears twice in one object; keep one");
  }
}

TEST(MessageText, CountsAsPeopleWrite) {
  EXPECT_EQ(counted(0, "warning"), "0 warnings");
  EXPECT_EQ(counted(1, "warning"), "1 warning");
  EXPECT_EQ(counted(12000, "prompt"), "12,000 prompts");
  EXPECT_EQ(with_commas(-1234567), "-1,234,567");
  EXPECT_EQ(with_commas(-999), "-999");
}

}  // namespace
}  // namespace tandem::base
