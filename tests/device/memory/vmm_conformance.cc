// Implements the tests of vmm_conformance.h.
#include "tests/device/memory/vmm_conformance.h"

#include <algorithm>
#include <cstring>

#include "tandem/error.h"

namespace tandem::device {

void VmmConformance::SetUp() {
  vmm_ = GetParam().make_vmm();
  host_memory_ = GetParam().make_host_memory(*vmm_);
  extent_bytes_ = GetParam().extent_granules * vmm_->granularity_bytes();
  host_ = host_memory_->allocate(extent_bytes_);
  ASSERT_NE(host_, nullptr);
  free_bytes_ = vmm_->device_bytes().free;
}

void VmmConformance::TearDown() {
  EXPECT_EQ(vmm_->counts(), VmmCounts{}) << "something was not given back";
  EXPECT_EQ(vmm_->device_bytes().free, free_bytes_);
  host_memory_->free(host_, extent_bytes_);
}

void VmmConformance::write(std::byte* device, int64_t bytes, uint8_t value) {
  std::memset(host_, value, static_cast<size_t>(bytes));
  host_memory_->copy_to_device(device, host_, bytes);
  host_memory_->synchronize();
}

int VmmConformance::read(const std::byte* device, int64_t bytes) {
  host_memory_->copy_to_host(host_, device, bytes);
  host_memory_->synchronize();
  const bool all_same = std::all_of(host_, host_ + bytes, [&](std::byte b) { return b == host_[0]; });
  return all_same ? static_cast<int>(host_[0]) : -1;
}

std::byte* VmmConformance::reserve(int64_t num_extents) {
  std::byte* const address = vmm_->reserve_addresses(num_extents * extent_bytes_);
  EXPECT_NE(address, nullptr);
  return address;
}

ExtentId VmmConformance::create() {
  const std::optional<ExtentId> extent = vmm_->create_extent(extent_bytes_);
  EXPECT_TRUE(extent.has_value());
  return extent.value_or(ExtentId{-1});
}

void VmmConformance::map_open(std::byte* address, ExtentId extent) {
  EXPECT_TRUE(vmm_->map(address, extent));
  EXPECT_TRUE(vmm_->open_access(address, extent_bytes_));
}

void VmmConformance::expect_untouchable(std::byte* address) {
  if (GetParam().faults_end_process) {
    EXPECT_DEATH(write(address, 1, 1), "");
  } else {
    EXPECT_ANY_THROW(write(address, 1, 1));
  }
}

namespace {

TEST_P(VmmConformance, AliasesShowTheSameBytes) {
  std::byte *const a = reserve(1), *const b = reserve(1);
  const ExtentId extent = create();
  map_open(a, extent);
  if (vmm_->can_alias()) {
    map_open(b, extent);
    write(a, extent_bytes_, 17);
    EXPECT_EQ(read(b, extent_bytes_), 17);
    write(b, extent_bytes_, 42);
    EXPECT_EQ(read(a, extent_bytes_), 42);
    vmm_->unmap(b, extent_bytes_);
  } else {
    EXPECT_THROW(vmm_->map(b, extent), BugError);
  }
  vmm_->unmap(a, extent_bytes_);
  vmm_->release_extent(extent);
  vmm_->free_addresses(a, extent_bytes_);
  vmm_->free_addresses(b, extent_bytes_);
}

TEST_P(VmmConformance, ContentsMoveWithTheExtent) {
  std::byte* const range = reserve(2);
  const ExtentId extent = create();
  map_open(range, extent);
  write(range, extent_bytes_, 7);
  vmm_->unmap(range, extent_bytes_);
  map_open(range + extent_bytes_, extent);
  EXPECT_EQ(read(range + extent_bytes_, extent_bytes_), 7);
  vmm_->unmap(range + extent_bytes_, extent_bytes_);
  map_open(range, extent);
  EXPECT_EQ(read(range, extent_bytes_), 7);
  vmm_->unmap(range, extent_bytes_);
  vmm_->release_extent(extent);
  vmm_->free_addresses(range, 2 * extent_bytes_);
}

TEST_P(VmmConformance, AddressesWithoutAnOpenMappingCannotBeTouched) {
  std::byte* const range = reserve(1);
  const ExtentId extent = create();
  expect_untouchable(range);
  ASSERT_TRUE(vmm_->map(range, extent));
  expect_untouchable(range);
  ASSERT_TRUE(vmm_->open_access(range, extent_bytes_));
  write(range, extent_bytes_, 3);
  EXPECT_EQ(read(range, extent_bytes_), 3);
  vmm_->unmap(range, extent_bytes_);
  expect_untouchable(range);
  vmm_->release_extent(extent);
  vmm_->free_addresses(range, extent_bytes_);
}

TEST_P(VmmConformance, OneCallOpensAndUnmapsARun) {
  constexpr int kNumExtents = 5;
  std::byte* const range = reserve(kNumExtents);
  std::vector<ExtentId> extents;
  for (int i = 0; i < kNumExtents; ++i) {
    extents.push_back(create());
    ASSERT_TRUE(vmm_->map(range + i * extent_bytes_, extents.back()));
  }
  ASSERT_TRUE(vmm_->open_access(range, kNumExtents * extent_bytes_));
  for (int i = 0; i < kNumExtents; ++i) write(range + i * extent_bytes_, extent_bytes_, static_cast<uint8_t>(i));
  for (int i = 0; i < kNumExtents; ++i) EXPECT_EQ(read(range + i * extent_bytes_, extent_bytes_), i);
  vmm_->unmap(range + extent_bytes_, 3 * extent_bytes_);  // extents in the middle
  EXPECT_EQ(vmm_->counts().num_mappings, 2);
  EXPECT_EQ(read(range + 4 * extent_bytes_, extent_bytes_), 4);
  vmm_->unmap(range, extent_bytes_);
  vmm_->unmap(range + 4 * extent_bytes_, extent_bytes_);
  for (const ExtentId extent : extents) vmm_->release_extent(extent);
  vmm_->free_addresses(range, kNumExtents * extent_bytes_);
}

TEST_P(VmmConformance, AReleasedExtentLivesAsLongAsItsMapping) {
  std::byte* const range = reserve(1);
  const ExtentId extent = create();
  map_open(range, extent);
  vmm_->release_extent(extent);
  EXPECT_LT(vmm_->device_bytes().free, free_bytes_);
  write(range, extent_bytes_, 9);
  EXPECT_EQ(read(range, extent_bytes_), 9);
  vmm_->unmap(range, extent_bytes_);
  EXPECT_EQ(vmm_->device_bytes().free, free_bytes_);
  vmm_->free_addresses(range, extent_bytes_);
}

TEST_P(VmmConformance, MisuseIsABugAndChangesNothing) {
  const int64_t granule = vmm_->granularity_bytes();
  EXPECT_THROW(vmm_->reserve_addresses(granule + 1), BugError);
  EXPECT_THROW(vmm_->reserve_addresses(0), BugError);
  EXPECT_THROW(vmm_->create_extent(granule - 1), BugError);
  std::byte* const range = reserve(3);
  const ExtentId first = create(), second = create();
  EXPECT_THROW(vmm_->map(range + 1, first), BugError) << "not aligned";
  EXPECT_THROW(vmm_->map(range + 3 * extent_bytes_, first), BugError) << "beyond the reservation";
  EXPECT_THROW(vmm_->map(range + 3 * extent_bytes_ - granule, first), BugError) << "half beyond it";
  EXPECT_THROW(vmm_->map(range, ExtentId{123456}), BugError) << "no such extent";
  EXPECT_THROW(vmm_->unmap(range, extent_bytes_), BugError) << "not mapped";
  EXPECT_THROW(vmm_->open_access(range, extent_bytes_), BugError) << "not mapped";
  map_open(range, first);
  write(range, extent_bytes_, 5);
  EXPECT_THROW(vmm_->map(range, second), BugError) << "mapped already";
  EXPECT_THROW(vmm_->map(range + granule, second), BugError) << "over half of a mapping";
  EXPECT_THROW(vmm_->unmap(range, granule), BugError) << "part of a mapping";
  EXPECT_THROW(vmm_->unmap(range, 2 * extent_bytes_), BugError) << "more than is mapped";
  EXPECT_THROW(vmm_->open_access(range, 2 * extent_bytes_), BugError);
  EXPECT_THROW(vmm_->free_addresses(range, 3 * extent_bytes_), BugError) << "still mapped";
  EXPECT_EQ(read(range, extent_bytes_), 5);
  EXPECT_EQ(vmm_->counts(), (VmmCounts{.num_reservations = 1, .num_extents = 2, .num_mappings = 1}));
  vmm_->unmap(range, extent_bytes_);
  EXPECT_THROW(vmm_->unmap(range, extent_bytes_), BugError) << "twice";
  vmm_->release_extent(first);
  vmm_->release_extent(second);
  EXPECT_THROW(vmm_->release_extent(first), BugError) << "twice";
  EXPECT_THROW(vmm_->map(range, first), BugError) << "released";
  EXPECT_THROW(vmm_->free_addresses(range, extent_bytes_), BugError) << "part of a reservation";
  vmm_->free_addresses(range, 3 * extent_bytes_);
  EXPECT_THROW(vmm_->free_addresses(range, 3 * extent_bytes_), BugError) << "twice";
}

TEST_P(VmmConformance, OutOfMemoryIsAnAnswerAndReleaseGivesTheBytesBack) {
  const int64_t granule = vmm_->granularity_bytes();
  const int64_t bytes = std::max(vmm_->device_bytes().total / 8 / granule, int64_t{1}) * granule;
  std::vector<ExtentId> extents;
  for (int round = 0; round < 2; ++round) {
    while (const std::optional<ExtentId> extent = vmm_->create_extent(bytes)) {
      extents.push_back(*extent);
      ASSERT_LE(extents.size(), 8U) << "more than the device has";
    }
    EXPECT_LT(vmm_->device_bytes().free, 2 * bytes);
    EXPECT_EQ(vmm_->counts().num_extents, std::ssize(extents));
    for (const ExtentId extent : extents) vmm_->release_extent(extent);
    extents.clear();
    EXPECT_EQ(vmm_->device_bytes().free, free_bytes_);
  }
  EXPECT_FALSE(vmm_->create_extent(16 * 8 * bytes).has_value());
}

}  // namespace
}  // namespace tandem::device
