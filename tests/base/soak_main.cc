// Starts test programs that take --soak and --soak-seconds.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/base/soak.h"

namespace tandem::base {
namespace {
bool soak = false;
double seconds = 0.0;  // 0: not given
constexpr double kHour = 3600.0;
}  // namespace
bool soaking() { return soak; }
double soak_seconds(double short_seconds) {
  if (seconds > 0.0) return seconds;
  return soak ? kHour : short_seconds;
}
}  // namespace tandem::base

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--soak") {
      tandem::base::soak = true;
      continue;
    }
    if (word == "--soak-seconds" && i + 1 < argc) tandem::base::seconds = std::atof(argv[++i]);
    if (word != "--soak-seconds" || tandem::base::seconds <= 0.0) {
      std::fprintf(stderr, "%s: %s: it takes --soak, --soak-seconds N and GoogleTest's flags\n", argv[0], argv[i]);
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
