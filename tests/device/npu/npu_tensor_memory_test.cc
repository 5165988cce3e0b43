// Tests of the memory that torch_npu computes in, over the stand-in for CANN: the source comes first, what is freed is
// used again and given back only after a wait, and a full device is one line.
#include "device/npu/tensor_memory.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "tandem/error.h"
#include "tests/device/npu/npu_stack.h"

namespace tandem::device {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class NpuTensorMemoryTest : public testing::Test {
 protected:
  NpuStack stack_{{"bytes", std::to_string(32 * kMiB)}};
  int num_waits_ = 0;
  NpuTensorMemory memory_{stack_.acl(), 0, [this] { ++num_waits_; }};
};

TEST_F(NpuTensorMemoryTest, BlocksHold32BytesMoreAndAreMultiplesOf512) {
  EXPECT_EQ(NpuTensorMemory::block_bytes(1), 512);
  EXPECT_EQ(NpuTensorMemory::block_bytes(480), 512);
  EXPECT_EQ(NpuTensorMemory::block_bytes(481), 1024);
  std::vector<std::byte*> blocks;
  for (const int64_t bytes : {1, 480, 481, 100000, 1 << 20, 3 << 20, 5 << 20}) {
    blocks.push_back(memory_.allocate(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back()) % 512, 0U) << bytes;
    std::memset(blocks.back(), 1, static_cast<size_t>(bytes + 32));
  }
  for (std::byte* const block : blocks) memory_.free(block);
}

TEST_F(NpuTensorMemoryTest, BlocksDoNotOverlap) {
  std::vector<std::pair<std::byte*, int64_t>> blocks;
  for (int i = 0; i < 200; ++i) {
    const int64_t bytes = 700 * (i % 7 + 1);
    blocks.emplace_back(memory_.allocate(bytes), bytes);
    std::memset(blocks.back().first, i, static_cast<size_t>(bytes));
  }
  for (int i = 0; i < 200; ++i) {
    const auto [block, bytes] = blocks[static_cast<size_t>(i)];
    EXPECT_TRUE(std::all_of(block, block + bytes, [i](std::byte b) { return b == static_cast<std::byte>(i); })) << i;
    memory_.free(block);
  }
}

TEST_F(NpuTensorMemoryTest, WhatIsFreedIsKeptAndUsedAgain) {
  std::byte* const small = memory_.allocate(1000);
  std::byte* const large = memory_.allocate(3 * kMiB);
  const int64_t used = fake_cann_count("used_bytes");
  memory_.free(small);
  memory_.free(large);
  EXPECT_EQ(fake_cann_count("used_bytes"), used);
  EXPECT_EQ(memory_.allocate(1200), small);
  EXPECT_EQ(memory_.allocate(3 * kMiB + 100), large);
  EXPECT_EQ(num_waits_, 0);
  memory_.free(small);
  memory_.free(large);
}

TEST_F(NpuTensorMemoryTest, ReleaseWaitsAndGivesBackWhatNobodyUses) {
  std::byte* const kept = memory_.allocate(1000);
  std::byte* const freed = memory_.allocate(3 * kMiB);
  std::byte* const beside = memory_.allocate(1000);  // in one piece with `kept`
  memory_.free(freed);
  memory_.free(beside);
  memory_.release_unused();
  EXPECT_EQ(num_waits_, 1);
  EXPECT_EQ(fake_cann_count("used_bytes"), 2 * kMiB);
  std::memset(kept, 1, 1000);
  memory_.free(kept);
  memory_.release_unused();
  EXPECT_EQ(fake_cann_count("blocks"), 0);
  EXPECT_NE(memory_.allocate(1000), nullptr) << "nothing that was given back is used again";
}

TEST_F(NpuTensorMemoryTest, AFullDeviceTakesBackWhatIsUnusedFirst) {
  for (const int64_t bytes : {3 * kMiB, 5 * kMiB}) memory_.free(memory_.allocate(bytes));
  std::byte* const most = memory_.allocate(31 * kMiB);
  EXPECT_EQ(num_waits_, 1);
  try {
    memory_.allocate(kMiB);
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(std::string(error.what()),
              "npu:0: no memory for a tensor of 1048576 bytes; free memory of this device, or give a smaller "
              "--max-tokens-per-gpu");
  }
  memory_.free(most);
  memory_.free(memory_.allocate(kMiB));
}

TEST_F(NpuTensorMemoryTest, AnErrorOfTheDeviceIsNoFullDevice) {
  NpuStack::fail("aclrtMalloc", 0, npu::kAclDriverError);
  try {
    memory_.allocate(1);
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("aclrtMalloc of 2097152 bytes: error 507899, ")) << error.what();
  }
  memory_.free(memory_.allocate(1));
}

// Serves requests of up to 4 KiB from an array.
class SmallSource final : public AllocatorHook {
 public:
  std::byte* allocate(int64_t bytes) override {
    if (is_full) throw EnvironmentError("the arena is full");
    if (bytes > 4096) return nullptr;
    ++num_used;
    return memory_;
  }
  bool free(std::byte* address) override {
    if (address != memory_) return false;
    --num_used;
    return true;
  }
  int num_used = 0;
  bool is_full = false;

 private:
  alignas(512) std::byte memory_[4096] = {};
};

TEST_F(NpuTensorMemoryTest, TheSourceComesFirst) {
  SmallSource source;
  std::byte* const before = memory_.allocate(100);
  memory_.set_source(&source);
  SmallSource other;
  EXPECT_THROW(memory_.set_source(&other), BugError);
  std::byte* const inside = memory_.allocate(100);
  EXPECT_EQ(source.num_used, 1);
  std::byte* const outside = memory_.allocate(4096);  // 32 bytes more are too many for it
  EXPECT_EQ(source.num_used, 1);
  memory_.free(before);
  memory_.free(inside);
  memory_.free(outside);
  EXPECT_EQ(source.num_used, 0);
  source.is_full = true;
  EXPECT_THROW(memory_.allocate(100), EnvironmentError);
  memory_.set_source(nullptr);
  memory_.free(memory_.allocate(100));
}

TEST_F(NpuTensorMemoryTest, ThreadsShareIt) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < 100; ++round) {
        const int64_t bytes = 500 * (round % 5 + 1);
        std::byte* const block = memory_.allocate(bytes);
        std::memset(block, thread, static_cast<size_t>(bytes));
        EXPECT_EQ(block[bytes - 1], static_cast<std::byte>(thread));
        memory_.free(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tandem::device
