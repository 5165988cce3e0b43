// The bytes of a store follow from its layout.
#include "weights/weights_plan.h"

#include <gtest/gtest.h>

namespace tandem::weights {
namespace {

TEST(WeightsPlan, EveryTensorBeginsAtACacheLine) {
  EXPECT_EQ(aligned_elements(16, 4), 16);
  EXPECT_EQ(aligned_elements(17, 4), 32);
  EXPECT_EQ(aligned_elements(17, 2), 32);
  EXPECT_EQ(aligned_elements(33, 2), 64);
  Layout layout;
  layout.tensors = {{.name = "a", .shape = {3, 5}, .slices = {}},  // 15
                    {.name = "b", .shape = {16}, .slices = {}},    // 16
                    {.name = "c", .shape = {33}, .slices = {}}};   // 33
  EXPECT_EQ(store_bytes(layout, 4), (16 + 16 + 48) * 4);
  EXPECT_EQ(store_bytes(layout, 2), (32 + 32 + 64) * 2);
  EXPECT_EQ(store_bytes({}, 4), 0);
}

}  // namespace
}  // namespace tandem::weights
