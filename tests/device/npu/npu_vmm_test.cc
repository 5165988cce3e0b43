// Tests of an Ascend NPU's memory over the stand-in for CANN: the conformance tests of every Vmm, with and without
// aliases and with work that runs late; every call failing in turn; and threads.
#include "device/npu/npu_vmm.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "device/npu/npu_checksum.h"
#include "device/npu/npu_host_memory.h"
#include "tandem/error.h"
#include "tests/device/memory/vmm_conformance.h"
#include "tests/device/npu/npu_stack.h"

namespace tandem::device {
namespace {

constexpr int64_t kTotalBytes = int64_t{64} << 20;

const npu::AclCalls& acl() {
  static const npu::AclCalls calls = npu::load_acl_calls();
  return calls;
}

VmmBackend npu_backend(const std::string& name, const std::string& aliases, bool is_late) {
  return {.name = name,
          .make_vmm =
              [=] {
                fake_cann_set("bytes", std::to_string(kTotalBytes).c_str());
                fake_cann_set("aliases", aliases.c_str());
                fake_cann_set("late", is_late ? "1" : "0");
                return std::make_unique<NpuVmm>(acl());
              },
          .make_host_memory = [](Vmm&) { return std::make_unique<NpuHostMemory>(acl()); },
          .extent_granules = 2};
}

INSTANTIATE_TEST_SUITE_P(Npu, VmmConformance,
                         testing::Values(npu_backend("Aliasing", "yes", false),
                                         npu_backend("SecondMappingRefused", "refused", false),
                                         npu_backend("SecondMappingShowsOtherBytes", "copies", false),
                                         npu_backend("AliasingAndLate", "yes", true),
                                         npu_backend("RefusedAndLate", "refused", true)),
                         vmm_backend_name);

TEST(NpuVmm, AsksTheDeviceWhetherAnExtentMayBeMappedTwice) {
  for (const auto& [aliases, can_alias] : {std::pair{"yes", true}, {"refused", false}, {"copies", false}}) {
    const NpuStack stack({{"aliases", aliases}});
    EXPECT_EQ(NpuVmm(stack.acl()).can_alias(), can_alias) << aliases;
  }
}

TEST(NpuVmm, AnOlderCannTellsNoGranularity) {
  const NpuStack stack;
  npu::AclCalls old = stack.acl();
  old.aclrtMemGetAllocationGranularity = nullptr;
  EXPECT_EQ(NpuVmm(old).granularity_bytes(), int64_t{2} << 20);
}

TEST(NpuVmm, EachDeviceHasItsOwnMemory) {
  const NpuStack stack({{"bytes", std::to_string(kTotalBytes)}});
  NpuVmm first(stack.acl(), 0), second(stack.acl(), 1);
  const ExtentId extent = second.create_extent(second.granularity_bytes()).value();
  EXPECT_EQ(first.device_bytes().free, kTotalBytes);
  EXPECT_EQ(second.device_bytes().free, kTotalBytes - second.granularity_bytes());
  second.release_extent(extent);
}

// Everything that a user of memory does, once. What fails leaves things behind, and finish() gives them back.
class Life {
 public:
  explicit Life(const npu::AclCalls& acl) : acl_(acl) {}

  // Returns whether all of it was done; false after an answer that means "no memory".
  bool run() {
    vmm_ = std::make_unique<NpuVmm>(acl_);
    host_memory_ = std::make_unique<NpuHostMemory>(acl_);
    bytes_ = vmm_->granularity_bytes();
    host_ = host_memory_->allocate(bytes_);
    addresses_ = vmm_->reserve_addresses(2 * bytes_);
    if (host_ == nullptr || addresses_ == nullptr) return false;
    for (int64_t i = 0; i < 2; ++i) {
      const std::optional<ExtentId> extent = vmm_->create_extent(bytes_);
      if (!extent) return false;
      extents_.push_back(*extent);
      vmm_->map(addresses_ + i * bytes_, *extent);
      ++num_mapped_;
    }
    if (!vmm_->open_access(addresses_, 2 * bytes_)) return false;
    vmm_->device_bytes();
    std::memset(host_, 7, static_cast<size_t>(bytes_));
    host_memory_->copy_to_device(addresses_ + bytes_, host_, bytes_);
    host_memory_->synchronize();
    std::memset(host_, 0, static_cast<size_t>(bytes_));
    host_memory_->copy_to_host(host_, addresses_ + bytes_, bytes_);
    host_memory_->synchronize();
    EXPECT_EQ(host_[bytes_ - 1], std::byte{7});
    vmm_->release_extent(extents_.back());  // while it is mapped
    extents_.pop_back();
    give_back();
    return true;
  }

  // Gives back what a failure left.
  void finish() {
    if (!vmm_) return;
    give_back();
  }

 private:
  // Each step is done once; a step that threw is tried again by the next call.
  void give_back() {
    if (!host_memory_) return;
    while (vmm_->counts().num_mappings > 0) {
      const int64_t left = vmm_->counts().num_mappings;
      vmm_->unmap(addresses_ + (num_mapped_ - left) * bytes_, left * bytes_);
    }
    for (; !extents_.empty(); extents_.pop_back()) vmm_->release_extent(extents_.back());
    if (addresses_ != nullptr) vmm_->free_addresses(addresses_, 2 * bytes_);
    addresses_ = nullptr;
    if (host_ != nullptr) host_memory_->free(host_, bytes_);
    host_ = nullptr;
  }

  const npu::AclCalls& acl_;
  std::unique_ptr<NpuVmm> vmm_;
  std::unique_ptr<NpuHostMemory> host_memory_;
  std::byte *host_ = nullptr, *addresses_ = nullptr;
  std::vector<ExtentId> extents_;
  int64_t bytes_ = 0, num_mapped_ = 0;
};

// A failure of each call, one after the other, is an answer or an error of one line that names the call; afterwards
// everything can be given back.
TEST(NpuVmm, SurvivesTheFailureOfEachCall) {
  for (const npu::AclResult code : {npu::kAclMemoryAllocation, npu::kAclDriverError}) {
    for (const bool is_late : {false, true}) {
      int64_t k = 0;
      for (bool has_failed = true; has_failed; ++k) {
        ASSERT_LT(k, 1000) << "it never ends";
        const NpuStack stack({{"late", is_late ? "1" : "0"}});
        const int64_t failures = fake_cann_count("failures");
        Life life(stack.acl());
        NpuStack::fail("*", k, code);
        bool is_done = false;
        std::string error;
        try {
          is_done = life.run();
        } catch (const EnvironmentError& thrown) {
          error = thrown.what();
        }
        has_failed = fake_cann_count("failures") > failures;
        const std::string call = fake_cann_failed_call();
        NpuStack::stop_failing();
        EXPECT_EQ(error.find('\n'), std::string::npos) << error;
        // Calls whose failure is an answer of its own: there is no context yet, and a second mapping is refused.
        const bool may_pass = call == "aclrtGetCurrentContext" || call == "aclrtMapMem" || call == "aclrtMemcpy";
        const bool must_show = has_failed && !may_pass;
        EXPECT_FALSE(must_show && is_done) << call << " failed and nobody noticed";
        EXPECT_FALSE(must_show && code == npu::kAclDriverError && error.empty()) << call;
        const bool names_it = error.starts_with(call) && error.find(';') != std::string::npos;
        EXPECT_TRUE(error.empty() || names_it) << error;
        life.finish();
      }
      EXPECT_GT(k, 50) << "calls were made";
    }
  }
}

TEST(NpuVmm, ARunThatCannotBeUnmappedWholeSaysWhereItStopped) {
  const NpuStack stack;
  NpuVmm vmm(stack.acl());
  const int64_t bytes = vmm.granularity_bytes();
  std::byte* const range = vmm.reserve_addresses(3 * bytes);
  for (int64_t i = 0; i < 3; ++i) {
    const ExtentId extent = vmm.create_extent(bytes).value();
    vmm.map(range + i * bytes, extent);
    vmm.release_extent(extent);
  }
  ASSERT_TRUE(vmm.open_access(range, 3 * bytes));
  NpuStack::fail("aclrtUnmapMem", 1, npu::kAclDriverError);
  try {
    vmm.unmap(range, 3 * bytes);
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("aclrtUnmapMem of 2097152 bytes: error 507899, "))
        << error.what();
  }
  EXPECT_EQ(vmm.counts().num_mappings, 2);
  vmm.unmap(range + bytes, 2 * bytes);
  vmm.free_addresses(range, 3 * bytes);
}

TEST(NpuHostMemory, ACopyToWhereNothingIsMappedIsAnErrorOfTheNextWait) {
  for (const char* late : {"0", "1"}) {
    const NpuStack stack({{"late", late}});
    NpuVmm vmm(stack.acl());
    NpuHostMemory memory(stack.acl());
    const int64_t bytes = vmm.granularity_bytes();
    std::byte* const host = memory.allocate(bytes);
    std::byte* const range = vmm.reserve_addresses(bytes);
    memory.copy_to_device(range, host, bytes);
    try {
      memory.synchronize();
      FAIL();
    } catch (const EnvironmentError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("aclrtSynchronizeStream: error 507052, a copy failed "))
          << error.what();
    }
    memory.synchronize();
    memory.free(host, bytes);
    vmm.free_addresses(range, bytes);
  }
}

TEST(NpuHostMemory, FreeIsOfWhatWasAllocatedAndCopiesStayWithinIt) {
  const NpuStack stack({{"host_bytes", "1048576"}});
  NpuHostMemory memory(stack.acl());
  std::byte* const host = memory.allocate(4096);
  ASSERT_NE(host, nullptr);
  EXPECT_THROW(memory.free(host, 8192), BugError);
  EXPECT_THROW(memory.free(host + 1, 4096), BugError);
  EXPECT_THROW(memory.copy_to_device(nullptr, host + 1, 4096), BugError);
  EXPECT_THROW(memory.copy_to_host(host - 1, nullptr, 1), BugError);
  memory.free(host, 4096);
  EXPECT_THROW(memory.free(host, 4096), BugError);
  EXPECT_EQ(memory.allocate(2 << 20), nullptr) << "more than the host has";
}

TEST(NpuHostMemory, WhatWasNotFreedGoesWithIt) {
  const NpuStack stack;  // counts what is left
  NpuHostMemory memory(stack.acl());
  EXPECT_NE(memory.allocate(4096), nullptr);
}

TEST(HostChecksums, PiecesGiveTheChecksumOfTheWhole) {
  for (const char* late : {"0", "1"}) {
    const NpuStack stack({{"late", late}});
    NpuVmm vmm(stack.acl());
    NpuHostMemory memory(stack.acl());
    const int64_t bytes = vmm.granularity_bytes();
    std::byte* const host = memory.allocate(bytes);
    std::byte* const range = vmm.reserve_addresses(bytes);
    const ExtentId extent = vmm.create_extent(bytes).value();
    vmm.map(range, extent);
    ASSERT_TRUE(vmm.open_access(range, bytes));
    for (int64_t i = 0; i < bytes; ++i) host[i] = static_cast<std::byte>(i * i / 7);
    memory.copy_to_device(range, host, bytes);
    memory.synchronize();
    {
      HostChecksums checksums(memory, 4096);
      for (const int64_t count : {0, 1, 4095, 4096, 4097, 8192, 12345, 65536 + 9}) {
        const Checksum whole = checksum_of({host + 16, static_cast<size_t>(count)});
        EXPECT_EQ(checksums.of(range + 16, count), whole) << count;
      }
    }
    vmm.unmap(range, bytes);
    vmm.release_extent(extent);
    vmm.free_addresses(range, bytes);
    memory.free(host, bytes);
  }
}

TEST(HostChecksums, TooLittlePinnedMemoryIsOneLine) {
  const NpuStack stack({{"host_bytes", "1048576"}});
  NpuHostMemory memory(stack.acl());
  try {
    const HostChecksums checksums(memory);
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(std::string(error.what()),
              "no 134217728 bytes of pinned memory for checksums of weights; free memory of the host");
  }
}

// Threads that never used AscendCL share a device: each maps, fills and reads memory of its own.
TEST(NpuVmm, ThreadsShareIt) {
  const NpuStack stack({{"late", "1"}});
  NpuVmm vmm(stack.acl());
  const int64_t bytes = vmm.granularity_bytes();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      NpuHostMemory memory(stack.acl());
      std::byte* const host = memory.allocate(bytes);
      std::byte* const range = vmm.reserve_addresses(bytes);
      for (int round = 0; round < 8; ++round) {
        const ExtentId extent = vmm.create_extent(bytes).value();
        vmm.map(range, extent);
        EXPECT_TRUE(vmm.open_access(range, bytes));
        std::memset(host, 16 * thread + round, static_cast<size_t>(bytes));
        memory.copy_to_device(range, host, bytes);
        memory.synchronize();
        std::memset(host, 0, static_cast<size_t>(bytes));
        memory.copy_to_host(host, range, bytes);
        memory.synchronize();
        EXPECT_TRUE(std::all_of(host, host + bytes, [&](std::byte b) { return b == std::byte(16 * thread + round); }));
        vmm.release_extent(extent);
        vmm.unmap(range, bytes);
      }
      vmm.free_addresses(range, bytes);
      memory.free(host, bytes);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(vmm.counts(), VmmCounts{});
}

}  // namespace
}  // namespace tandem::device
