// Tests of LibTorch's allocations on a device that are redirected to a source: it is asked from any thread, told of
// each free, and left alone where it declines or there is none.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "device/registry.h"
#include "tandem/error.h"

namespace tandem::device {
namespace {

// Gives host memory and records what it gave; declines allocations of `declined_bytes`.
class BookedSource final : public AllocatorHook {
 public:
  ~BookedSource() override { EXPECT_TRUE(bytes_.empty()) << bytes_.size() << " never came back"; }
  std::byte* allocate(int64_t bytes) override {
    if (bytes == declined_bytes) return nullptr;
    if (bytes > kLimitBytes) throw EnvironmentError("the source is full; ask for less");
    auto* const address = static_cast<std::byte*>(std::aligned_alloc(64, static_cast<size_t>((bytes + 63) / 64 * 64)));
    std::lock_guard lock(mutex_);
    bytes_[address] = bytes;
    ++num_allocations;
    return address;
  }
  bool free(std::byte* address) override {
    std::lock_guard lock(mutex_);
    if (bytes_.erase(address) == 0) return false;
    std::free(address);
    return true;
  }
  bool has(const at::Tensor& tensor) {
    std::lock_guard lock(mutex_);
    return bytes_.contains(static_cast<std::byte*>(tensor.mutable_data_ptr()));
  }

  int64_t declined_bytes = -1;
  int64_t num_allocations = 0;

 private:
  static constexpr int64_t kLimitBytes = int64_t{1} << 30;
  std::mutex mutex_;
  std::map<std::byte*, int64_t> bytes_;
};

struct TensorSourceTest : testing::Test {
  MemoryDriver driver = open_memory({});
  BookedSource source;
  void SetUp() override { driver.set_tensor_source(&source); }
  void TearDown() override { driver.set_tensor_source(nullptr); }
};

TEST_F(TensorSourceTest, TensorsLieWhereTheSourceSays) {
  EXPECT_EQ(at::empty({0}).numel(), 0);
  at::Tensor tensor = at::ones({1000});
  EXPECT_TRUE(source.has(tensor));
  tensor = at::Tensor();
  source.declined_bytes = 4096;
  const at::Tensor declined = at::ones({1024});
  EXPECT_FALSE(source.has(declined)) << "LibTorch's own serves what the source declines";
  EXPECT_EQ(declined.sum().item<float>(), 1024.0F);
}

TEST_F(TensorSourceTest, WhatIsOlderThanTheSourceIsFreedWhereItCameFrom) {
  driver.set_tensor_source(nullptr);
  at::Tensor older = at::ones({1000});
  driver.set_tensor_source(&source);
  EXPECT_FALSE(source.has(older));
  older = at::Tensor();
  EXPECT_EQ(source.num_allocations, 0);
}

TEST_F(TensorSourceTest, ThreadsAndBackwardPassesAreServedToo) {
  std::thread([&] { EXPECT_TRUE(source.has(at::ones({512}))); }).join();
  const at::Tensor x = at::ones({256}).set_requires_grad(true);
  const int64_t before = source.num_allocations;
  const at::Tensor gradient = torch::autograd::grad({(x * x).sum()}, {x})[0];
  EXPECT_TRUE(source.has(gradient));
  EXPECT_GT(source.num_allocations, before + 1);
}

TEST_F(TensorSourceTest, AFullSourceIsItsOwnError) {
  EXPECT_THROW(at::empty({int64_t{1} << 30}), EnvironmentError);
  EXPECT_TRUE(source.has(at::ones({8}))) << "and nothing is broken";
}

}  // namespace
}  // namespace tandem::device
