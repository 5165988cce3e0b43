// A run saves at the right steps, and counts its checkpoints.
#include "config/output_options.h"

#include <gtest/gtest.h>

namespace tandem::config {
namespace {

TEST(SaveInterval, HasADefaultThatFillsNoDisk) {
  OutputOptions output;
  EXPECT_EQ(output.parts_due(9, 25), std::nullopt);
  EXPECT_EQ(output.parts_due(10, 25), SavedParts::kCheckpoint);
  EXPECT_EQ(output.parts_due(25, 25), SavedParts::kBoth);
  EXPECT_EQ(output.num_checkpoints(25), 3);
  EXPECT_EQ(output.num_checkpoints(25, 10), 2);
  EXPECT_EQ(output.num_exports(25), 1);
  EXPECT_EQ(output.num_exports(25, 25), 0);
  output.save_interval = 20;
  EXPECT_EQ(output.parts_due(10, 25), std::nullopt);
  EXPECT_EQ(output.parts_due(20, 25), SavedParts::kBoth);
  EXPECT_EQ(output.num_checkpoints(25), 2);
  EXPECT_EQ(output.num_exports(25), 2);
}

}  // namespace
}  // namespace tandem::config
