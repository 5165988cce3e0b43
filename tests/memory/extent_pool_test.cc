// Extents are lent all or none, and come back.
#include "memory/extent_pool.h"

#include <gtest/gtest.h>

#include "tests/device/memory/failing_vmm.h"
#include "tests/memory/simulated_device.h"

namespace tandem::memory {

namespace {

TEST(ExtentPool, LendsWhatCameBackBeforeItCreates) {
  SimulatedDevice device(4);
  {
    const auto loan = device.pool.borrow(3);
    ASSERT_TRUE(loan.has_value());
    EXPECT_EQ(device.pool.num_free(), 0);
  }
  EXPECT_EQ(device.pool.num_free(), 3);
  const auto again = device.pool.borrow(3);
  EXPECT_EQ(device.vmm.counts().num_extents, 3);
  EXPECT_EQ(device.ledger.pool_bytes(), 3 * kExtentBytes);
}

TEST(ExtentPool, ABorrowThatCannotBeMetChangesNothing) {
  SimulatedDevice device(4);
  const auto loan = device.pool.borrow(2);
  EXPECT_FALSE(device.pool.borrow(3).has_value());
  EXPECT_EQ(device.pool.num_extents(), 2);
  EXPECT_EQ(device.vmm.counts().num_extents, 2) << "what was created in vain went back";
  EXPECT_TRUE(device.pool.borrow(2).has_value());
}

TEST(ExtentPool, ItsEndGivesTheDeviceItsExtents) {
  SimulatedDevice device(4);
  {
    ExtentPool pool(device.vmm, device.ledger, kExtentBytes);
    { const auto loan = pool.borrow(3); }
    EXPECT_EQ(device.vmm.device_bytes().free, kExtentBytes) << "they stay in the pool";
  }
  EXPECT_EQ(device.vmm.device_bytes().free, 4 * kExtentBytes);
  EXPECT_EQ(device.ledger.pool_bytes(), 0);
}

TEST(ExtentPool, LoansMove) {
  SimulatedDevice device(4);
  auto loan = device.pool.borrow(1), other = device.pool.borrow(2);
  loan = std::move(other);
  EXPECT_EQ(device.pool.num_free(), 1) << "what it held before came back";
  EXPECT_EQ(loan->extents().size(), 2U);
}

TEST(ExtentPool, ADriverErrorLeavesItAsItWas) {
  SimulatedDevice device(4);
  device::FailingVmm failing(device.vmm, 2, false, device::Outcome::kDriverError);
  Ledger ledger;
  ExtentPool pool(failing, ledger, kExtentBytes);
  EXPECT_THROW(pool.borrow(3), EnvironmentError);
  EXPECT_EQ(pool.num_extents(), 0);
  EXPECT_EQ(ledger.pool_bytes(), 0);
  EXPECT_TRUE(pool.borrow(3).has_value());
}

}  // namespace
}  // namespace tandem::memory
