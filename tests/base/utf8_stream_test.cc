// Incremental UTF-8: pieces join to the whole, and no half character comes out.
#include "base/utf8_stream.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/json.h"

namespace tandem::base {
namespace {

std::string whole(const std::string& bytes) {
  Utf8Stream stream;
  const std::string text = stream.push(bytes);
  return text + stream.finish();
}

TEST(Utf8Stream, ReplacesMaximalPrefixes) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(whole("a\xC3\xA9z"), "a\xC3\xA9z");
  EXPECT_EQ(whole("\xF0\x9F\x98\x80"), "\xF0\x9F\x98\x80");
  EXPECT_EQ(whole("\xF0\x9F\x98x"), bad + "x");  // one for a prefix of three bytes
  EXPECT_EQ(whole("\xC0\x80"), bad + bad);       // overlong: no prefix of anything
  EXPECT_EQ(whole("\xE0\x80\x80"), bad + bad + bad);
  EXPECT_EQ(whole("\xED\xA0\x80"), bad + bad + bad);            // a surrogate
  EXPECT_EQ(whole("\xF4\x90\x80\x80"), bad + bad + bad + bad);  // beyond U+10FFFF
  EXPECT_EQ(whole("\xE2\x82"), bad);                            // cut short at the end
  EXPECT_EQ(whole("\xE2\xE2\x82\xAC"), bad + "\xE2\x82\xAC");
  EXPECT_EQ(whole("\xFF\x80"), bad + bad);
}

TEST(Utf8Stream, KeepsAnUnfinishedCharacterBack) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("x\xE2"), "x");
  EXPECT_EQ(stream.push("\x82"), "");
  EXPECT_EQ(stream.push("\xAC"), "\xE2\x82\xAC");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8Stream, PiecesJoinToTheWhole) {
  const auto seed = std::random_device{}();
  RecordProperty("seed", static_cast<int>(seed));
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::vector<std::string> parts = {"a",        "\xC3\xA9", "\xE6\x95\xB0", "\xF0\x9F\x98\x80",
                                          "\xC3",     "\xE6\x95", "\xF0\x9F",     "\x80",
                                          "\xED\xA0", "\xF4\x8F", "\xFF",         "\xE0"};
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (size_t i = random() % 12; i > 0; --i) bytes += parts[random() % parts.size()];
    Utf8Stream stream;
    std::string text;
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = std::min<size_t>(1 + random() % 4, bytes.size() - at);
      text += stream.push(bytes.substr(at, size));
      ASSERT_NO_THROW(base::Json(text).dump());  // well-formed at every moment
      at += size;
    }
    ASSERT_EQ(text + stream.finish(), whole(bytes));
  }
}

}  // namespace
}  // namespace tandem::base
