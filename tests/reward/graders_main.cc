// The entry of the grader tests, which take --repeat N.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/reward/repeat.h"

namespace tandem::reward {
namespace {
int repeat_count = 1;
}
int repeat() { return repeat_count; }
}  // namespace tandem::reward

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const int count = i + 1 < argc && std::string_view(argv[i]) == "--repeat" ? std::atoi(argv[i + 1]) : 0;
    if (count < 1) {
      std::fprintf(stderr, "%s: unknown argument %s; it takes --repeat N and GoogleTest's flags\n", argv[0], argv[i]);
      return 2;
    }
    tandem::reward::repeat_count = count;
    ++i;
  }
  return RUN_ALL_TESTS();
}
