// The live line is drawn on a terminal, and lines are plain elsewhere.
#include "report/terminal.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>

namespace tandem::report {
namespace {

// Returns the bytes that a terminal of this kind receives.
std::string shown(bool is_terminal, int columns, const std::function<void(Terminal&)>& use) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  {
    Terminal terminal(stream, is_terminal, columns);
    use(terminal);
  }
  std::fclose(stream);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
  return {text, size};
}

TEST(Terminal, ShowsOnlyWholeLinesWhereNobodyWatches) {
  EXPECT_EQ(shown(false, 80,
                  [](Terminal& terminal) {
                    terminal.live("half");
                    terminal.line("one");
                    terminal.live("half");
                    terminal.line("two");
                  }),
            "one\ntwo\n");
}

TEST(Terminal, LiveLineMakesWayAndIsCutToTheWidth) {
  const std::string text = shown(true, 30, [](Terminal& terminal) {
    terminal.live(std::string(50, 'x'));
    terminal.line("done");
  });
  EXPECT_EQ(text, "\r" + std::string(29, 'x') + "\033[K\r" + "\r\033[K" + "done\n");
}

TEST(Terminal, RedrawsAtMostTenTimesASecond) {
  const std::string text = shown(true, 80, [](Terminal& terminal) {
    for (int i = 0; i < 1000; ++i) terminal.live("x");
  });
  EXPECT_LT(text.size(), 200U);
  EXPECT_TRUE(text.ends_with("\r\033[K"));  // nothing is left over
}

TEST(Terminal, BarFillsFromTheLeft) {
  EXPECT_EQ(progress_bar(0, 4, 4), "[----]");
  EXPECT_EQ(progress_bar(1, 4, 4), "[#---]");
  EXPECT_EQ(progress_bar(4, 4, 4), "[####]");
  EXPECT_EQ(progress_bar(9, 4, 4), "[####]");
  EXPECT_EQ(progress_bar(1, 0, 4), "[----]");
}

TEST(Wrapped, BreaksOnlyBetweenParts) {
  EXPECT_EQ(wrapped("a b  c d  e", 80), "a b  c d  e");
  EXPECT_EQ(wrapped("a b  c d  e", 8), "a b  c d\n    e");
  EXPECT_EQ(wrapped("a b  c d  e", 4), "a b\n    c d\n    e");
  EXPECT_EQ(wrapped("one long sentence that has no parts", 10), "one long sentence that has no parts");
  EXPECT_EQ(wrapped("a    table  1\nb    row  2", 10), "a    table  1\nb    row  2");
}

TEST(Terminal, KnowsHowWideALineMayBe) {
  EXPECT_EQ(Terminal(stdout, true, 80).line_columns(), 80U);
  EXPECT_EQ(Terminal(stdout, true, 200).line_columns(), 100U);
  EXPECT_EQ(Terminal(stdout, false, 80).line_columns(), 100U);
}

TEST(ClockText, IsReadAsAClock) {
  EXPECT_EQ(clock_text(0.4), "0:00");
  EXPECT_EQ(clock_text(754), "12:34");
  EXPECT_EQ(clock_text(3723), "1:02:03");
  EXPECT_EQ(clock_text(1e300), "277777:46:40");
}

}  // namespace
}  // namespace tandem::report
