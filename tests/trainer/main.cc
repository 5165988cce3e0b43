// The trainer's tests; --golden DIR reads the golden models and gradients from another folder of the same format.
#include <gtest/gtest.h>

#include <string_view>

#include "tests/trainer/fixture.h"

int main(int argc, char** argv) {
  // Before GoogleTest starts: it then asks the golden folder for its cases.
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]) == "--golden") tandem::trainer::golden_directory() = argv[i + 1];
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
