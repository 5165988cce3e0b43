// The entry of test programs that take --soak.
#include <gtest/gtest.h>

#include <cstdio>
#include <string_view>

#include "tests/base/soak.h"

namespace tandem::base {
namespace {
bool soak = false;
}  // namespace
bool soaking() { return soak; }
}  // namespace tandem::base

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--soak") {
      std::fprintf(stderr, "%s: unknown argument %s; it takes --soak and GoogleTest's flags\n", argv[0], argv[i]);
      return 2;
    }
    tandem::base::soak = true;
  }
  return RUN_ALL_TESTS();
}
