// Pause gives the bytes back, resume brings them again at the same addresses, and neither stops half-way.
#include "memory/region.h"

#include <gtest/gtest.h>

#include <cstring>

#include "device/cpu/cpu_host_memory.h"
#include "device/cpu/cpu_vmm.h"
#include "tests/device/failing_vmm.h"
#include "tests/memory/simulated_device.h"

namespace tandem::memory {

namespace {

RegionOptions region_options(Content content, int64_t bytes) {
  RegionOptions options{.name = "r", .tag = Tag::kReference, .bytes = bytes, .content = content};
  return options;
}

// Uses the memory of the CPU, so that the test can read it.
struct RegionOnCpu : testing::Test {
  device::CpuVmm vmm{int64_t{16} << 20};
  device::CpuHostMemory host_memory;
  Ledger ledger;
  ExtentPool pool{vmm, ledger, 64 * 1024};
  HostArena host_arena{host_memory, 256 * 1024};
  void TearDown() override { EXPECT_EQ(ledger.current_bytes(), 0); }
};

TEST_F(RegionOnCpu, KeepsItsBytesAndItsAddressOverAPause) {
  Region region(pool, host_arena, region_options(Content::kKeep, 100'000));
  ASSERT_TRUE(region.resume());
  std::byte* const data = region.data();
  for (int64_t i = 0; i < region.bytes(); ++i) data[i] = static_cast<std::byte>(i * 7);
  for (int round = 0; round < 3; ++round) {
    region.pause();
    EXPECT_EQ(region.mapped_bytes(), 0);
    auto others = pool.borrow(2);  // another borrower overwrites the memory meanwhile
    Region other(pool, host_arena, region_options(Content::kDiscard, 100'000));
    others.reset();
    ASSERT_TRUE(other.resume());
    std::memset(other.data(), 0xFF, 100'000);
    ASSERT_TRUE(region.resume());
    ASSERT_EQ(region.data(), data);
    for (int64_t i = 0; i < region.bytes(); ++i) ASSERT_EQ(data[i], static_cast<std::byte>(i * 7)) << i;
  }
}

TEST_F(RegionOnCpu, ZeroesOrRebuildsAtEveryResume) {
  int num_rebuilds = 0;
  RegionOptions rebuilt = region_options(Content::kRebuild, 5000);
  rebuilt.rebuild = [&](std::byte* data, int64_t bytes) {
    std::memset(data, ++num_rebuilds, static_cast<size_t>(bytes));
  };
  Region zero(pool, host_arena, region_options(Content::kZero, 5000)), rebuild(pool, host_arena, rebuilt);
  for (int round = 1; round <= 3; ++round) {
    ASSERT_TRUE(zero.resume() && rebuild.resume());
    EXPECT_EQ(zero.data()[4999], std::byte{0});
    EXPECT_EQ(rebuild.data()[4999], static_cast<std::byte>(round));
    std::memset(zero.data(), 0x55, 5000);
    zero.pause();
    rebuild.pause();
  }
}

TEST_F(RegionOnCpu, AStrayTouchOfAPausedRegionFaults) {
  Region region(pool, host_arena, region_options(Content::kDiscard, 5000));
  ASSERT_TRUE(region.resume());
  std::byte* const data = region.data();
  data[0] = std::byte{1};
  region.pause();
  EXPECT_DEATH(data[0] = std::byte{2}, "");
}

TEST_F(RegionOnCpu, PauseAndTrimGiveTheBytesToTheDevice) {
  const int64_t free_bytes = vmm.device_bytes().free;
  Region region(pool, host_arena, region_options(Content::kDiscard, 100'000));
  ASSERT_TRUE(region.resume());
  EXPECT_EQ(region.mapped_bytes(), 2 * pool.extent_bytes());
  EXPECT_EQ(ledger.current_bytes(Tag::kReference), 2 * pool.extent_bytes());
  region.pause();
  EXPECT_EQ(pool.trim(), 2);
  EXPECT_EQ(vmm.device_bytes().free, free_bytes);
}

TEST(Region, MisuseIsABugAndChangesNothing) {
  SimulatedDevice device(4);
  Region region(device.pool, device.host_arena, region_options(Content::kZero, kExtentBytes));
  EXPECT_THROW(region.data(), BugError);
  EXPECT_THROW(region.pause(), BugError);
  ASSERT_TRUE(region.resume());
  EXPECT_THROW(region.resume(), BugError);
  EXPECT_EQ(device.ledger.current_bytes(), kExtentBytes);
  region.pause();
  EXPECT_THROW(region.pause(), BugError);
  try {
    region.data();
    FAIL();
  } catch (const BugError& error) {
    EXPECT_NE(std::string(error.what()).find("r is paused: resume it before use"), std::string::npos) << error.what();
  }
  EXPECT_THROW(Region(device.pool, device.host_arena, region_options(Content::kRebuild, 1)), BugError)
      << "nothing to rebuild it with";
}

TEST(Region, ResumeSaysNoWithoutTouchingAnything) {
  SimulatedDevice device(3);
  Region a(device.pool, device.host_arena, region_options(Content::kZero, 2 * kExtentBytes)),
      b(device.pool, device.host_arena, region_options(Content::kZero, 2 * kExtentBytes));
  ASSERT_TRUE(a.resume());
  const auto counts = device.vmm.counts();
  EXPECT_FALSE(b.resume());
  EXPECT_TRUE(b.is_paused());
  EXPECT_EQ(device.vmm.counts(), counts);
  a.pause();
  EXPECT_TRUE(b.resume());
}

TEST(Region, WhatCannotBeKeptIsRefusedAtTheStart) {
  SimulatedDevice device(64);
  const int64_t bytes = device.host_arena.bytes();
  const Region first(device.pool, device.host_arena, region_options(Content::kKeep, bytes - 512));
  EXPECT_THROW(Region(device.pool, device.host_arena, region_options(Content::kKeep, 513)), EnvironmentError);
  EXPECT_NO_THROW(Region(device.pool, device.host_arena, region_options(Content::kKeep, 512)));
  EXPECT_EQ(device.host_arena.free_bytes(), 512);
}

TEST(Region, WaitsForTheDeviceBeforeItGivesMemoryUp) {
  SimulatedDevice device(4);
  int num_waits = 0;
  RegionOptions options = region_options(Content::kDiscard, 1);
  options.synchronize = [&] {
    ++num_waits;
    EXPECT_EQ(device.vmm.counts().num_mappings, 1) << "still mapped when it waits";
  };
  {
    Region region(device.pool, device.host_arena, options);
    ASSERT_TRUE(region.resume());
    region.pause();
    EXPECT_EQ(num_waits, 1);
    ASSERT_TRUE(region.resume());
  }
  EXPECT_EQ(num_waits, 2) << "and when it ends";
}

TEST(Region, ARebuildThatFailsLeavesItPaused) {
  SimulatedDevice device(4);
  bool fails = true;
  RegionOptions options = region_options(Content::kRebuild, kExtentBytes);
  options.rebuild = [&](std::byte*, int64_t) {
    if (fails) throw EnvironmentError("no");
  };
  Region region(device.pool, device.host_arena, options);
  EXPECT_THROW(region.resume(), EnvironmentError);
  EXPECT_TRUE(region.is_paused());
  EXPECT_EQ(device.vmm.counts().num_mappings, 0);
  EXPECT_EQ(device.pool.num_free(), 1);
  fails = false;
  EXPECT_TRUE(region.resume());
}

}  // namespace
}  // namespace tandem::memory
