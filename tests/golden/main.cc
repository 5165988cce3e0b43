// The entry of test programs that take --golden DIR.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <vector>

#include "tests/golden/golden.h"

namespace tandem::golden {
namespace {
std::string& mutable_directory() {
  static std::string directory = kDefaultDirectory;
  return directory;
}
}  // namespace

const std::string& directory() { return mutable_directory(); }

}  // namespace tandem::golden

int main(int argc, char** argv) {
  // Before GoogleTest starts: it then asks the golden folder for its cases.
  std::vector<char*> rest(argv, argv + argc);
  const auto golden = std::find(rest.begin(), rest.end(), std::string_view("--golden"));
  if (golden != rest.end() && golden + 1 != rest.end()) {
    tandem::golden::mutable_directory() = golden[1];
    rest.erase(golden, golden + 2);
  }
  int num_left = static_cast<int>(rest.size());
  rest.push_back(nullptr);
  testing::InitGoogleTest(&num_left, rest.data());
  if (num_left > 1) {
    std::fprintf(stderr, "%s: unknown argument %s; it takes --golden DIR and GoogleTest's flags\n", argv[0], rest[1]);
    return 2;
  }
  return RUN_ALL_TESTS();
}
