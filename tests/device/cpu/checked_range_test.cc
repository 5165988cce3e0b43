// Tests that a range which ends behind its memory is reported before a loop without checks of its own begins. Only
// AddressSanitizer knows what may be touched.
#include "device/cpu/checked_range.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem::device::cpu {
namespace {

#if defined(__SANITIZE_ADDRESS__)
TEST(CheckedRange, IsReportedWhereItEndsBehindItsMemory) {
  const std::vector<float> numbers(16);
  check_range(numbers.data(), 16 * sizeof(float));
  check_range(numbers.data() + 16, 0);
  EXPECT_DEATH(check_range(numbers.data(), 17 * sizeof(float)), "heap-buffer-overflow");
}
#endif

}  // namespace
}  // namespace tandem::device::cpu
