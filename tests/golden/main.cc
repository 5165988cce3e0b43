// The entry of test programs that take --golden DIR.
#include <gtest/gtest.h>

#include <cstdio>
#include <string_view>

#include "tests/golden/golden.h"

namespace tandem::golden {
namespace {
std::string& mutable_directory() {
  static std::string directory = "tests/golden";
  return directory;
}
}  // namespace

const std::string& directory() { return mutable_directory(); }

}  // namespace tandem::golden

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--golden" || i + 1 == argc) {
      std::fprintf(stderr, "%s: unknown argument %s; it takes --golden DIR and GoogleTest's flags\n", argv[0], argv[i]);
      return 2;
    }
    tandem::golden::mutable_directory() = argv[++i];
  }
  return RUN_ALL_TESTS();
}
