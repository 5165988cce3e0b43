// Checks what is read of a stream whose lines may be longer than anybody can hold.
#include "run/request_lines.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace tandem::run {
namespace {

TEST(RequestLines, ALineThatIsTooLongIsToldAndNotHeld) {
  std::istringstream input("short\n" + std::string(1'000'000, 'x') + "\n\n12345678\nlast");
  RequestLines lines(input, 8);
  const std::vector<std::pair<std::string, int64_t>> expected = {
      {"short", 5}, {"xxxxxxxx", 1'000'000}, {"", 0}, {"12345678", 8}, {"last", 4}};
  int64_t number = 0;
  for (const auto& [text, num_bytes] : expected) {
    ASSERT_TRUE(lines.next());
    EXPECT_EQ(lines.number(), ++number);
    EXPECT_EQ(lines.text(), text);
    EXPECT_LT(lines.text().capacity(), 64U);
    EXPECT_EQ(lines.num_bytes(), num_bytes);
    EXPECT_EQ(lines.is_too_long(), num_bytes > 8);
  }
  EXPECT_FALSE(lines.next());
  EXPECT_FALSE(lines.next());
}

}  // namespace
}  // namespace tandem::run
