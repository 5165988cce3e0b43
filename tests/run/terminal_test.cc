// The live line on a terminal, and quiet lines elsewhere.
#include "run/terminal.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>

namespace tandem::run {
namespace {

// What a terminal of this kind receives.
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
  EXPECT_TRUE(text.ends_with("\r\033[K"));  // nothing is left behind
}

TEST(Terminal, BarFillsFromTheLeft) {
  EXPECT_EQ(progress_bar(0, 4, 4), "[----]");
  EXPECT_EQ(progress_bar(1, 4, 4), "[#---]");
  EXPECT_EQ(progress_bar(4, 4, 4), "[####]");
  EXPECT_EQ(progress_bar(9, 4, 4), "[####]");
  EXPECT_EQ(progress_bar(1, 0, 4), "[----]");
}

}  // namespace
}  // namespace tandem::run
