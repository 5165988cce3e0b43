// No character that a terminal obeys gets through, and no other is changed.
#include "base/printable.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

#include "base/json.h"

namespace tandem::base {
namespace {

TEST(Printable, EscapesWhatATerminalObeys) {
  EXPECT_EQ(printable("\x1b[31m"), "\\u001b[31m");
  EXPECT_EQ(printable(std::string_view("\0\b\r\x7f", 4)), "\\u0000\\u0008\\u000d\\u007f");
  EXPECT_EQ(printable("\u009b31m\u0085"), "\\u009b31m\\u0085") << "C1";
  EXPECT_EQ(printable("\u202eevil\u2066\u061c\u200f"), "\\u202eevil\\u2066\\u061c\\u200f");
  EXPECT_EQ(printable("\u2028\u2029"), "\\u2028\\u2029");
}

TEST(Printable, EscapesBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("a\x9b b"), "a\\x9b b") << "C1 of terminals without UTF-8";
  EXPECT_EQ(printable("\xc0\x9b"), "\\xc0\\x9b") << "overlong";
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(printable("\xf4\x90\x80\x80\xe2\x82"), "\\xf4\\x90\\x80\\x80\\xe2\\x82") << "beyond, and cut off";
}

TEST(Printable, LeavesOtherTextAsItIs) {
  for (const std::string text :
       {"", "plain\ttext\n", "Grüße, 你好, 🙂 \xef\xbf\xbd", "a \\u001b that is typed"}) {
    EXPECT_EQ(printable(text), text);
  }
}

// Random bytes contain no unsafe character afterwards, and JSON keeps its value.
TEST(Printable, LeavesNothingInAnyText) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (int n = 0; n < 8; ++n) {
      const uint64_t draw = random();
      if (draw % 3 == 0) {
        text += static_cast<char>(draw >> 8);
      } else {  // a character of two or three bytes
        const auto code = static_cast<uint32_t>((draw >> 8) % 0x2100);
        if (code < 0x800) {
          text += {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
        } else {
          text += {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3F)),
                   static_cast<char>(0x80 | (code & 0x3F))};
        }
      }
    }
    const std::string safe = printable(text);
    EXPECT_EQ(printable(safe), safe) << i;
    for (const char c : safe) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') << i;
    EXPECT_EQ(safe.find("\u009b"), std::string::npos) << i;
    EXPECT_EQ(safe.find("\u202e"), std::string::npos) << i;
    const std::string json = dump_json(Json{{text, text}});
    EXPECT_EQ(parse_json(printable(json), "safe"), parse_json(json, "json")) << i;
  }
}

}  // namespace
}  // namespace tandem::base
