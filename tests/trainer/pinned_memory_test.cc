// Tests of pinned memory that is allocated during other work: it is there when asked for, zeroed, and released whatever
// happens.
#include "trainer/pinned_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <string>
#include <thread>

#include "device/cpu/cpu_host_memory.h"
#include "tandem/error.h"
#include "tests/device/memory/failing_vmm.h"

namespace tandem::trainer {
namespace {

constexpr int64_t kBytes = int64_t{3} << 20;

// Allocates garbage, but waits for permission.
class SlowHostMemory final : public device::CpuHostMemory {
 public:
  std::byte* allocate(int64_t bytes) override {
    may_allocate.get_future().wait();
    std::byte* const host = CpuHostMemory::allocate(bytes);
    std::memset(host, 0xAB, static_cast<size_t>(bytes));
    held_bytes += bytes;
    return host;
  }
  void free(std::byte* host, int64_t bytes) override {
    CpuHostMemory::free(host, bytes);
    held_bytes -= bytes;
  }
  std::promise<void> may_allocate;
  int64_t held_bytes = 0;
};

TEST(PinnedMemory, IsTakenBesideOtherWorkAndZeroed) {
  SlowHostMemory host_memory;
  {
    const PinnedMemory pinned(host_memory, kBytes);  // it returns, although nothing can be allocated yet
    host_memory.may_allocate.set_value();
    const std::byte* const data = pinned.data();
    EXPECT_TRUE(std::all_of(data, data + kBytes, [](std::byte byte) { return byte == std::byte{0}; }));
    EXPECT_EQ(pinned.data(), data);
    EXPECT_EQ(host_memory.held_bytes, kBytes);
  }
  EXPECT_EQ(host_memory.held_bytes, 0);
}

TEST(PinnedMemory, ThatNobodyAskedForIsGivenBack) {
  SlowHostMemory host_memory;
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    host_memory.may_allocate.set_value();
  });
  { const PinnedMemory pinned(host_memory, kBytes); }
  EXPECT_EQ(host_memory.held_bytes, 0);
  later.join();
}

TEST(PinnedMemory, SaysAtEachUseThatTheHostHasTooLittle) {
  device::CpuHostMemory real;
  device::FailingHostMemory full(real, 0, /*for_good=*/false);
  const PinnedMemory pinned(full, kBytes);
  for (int use = 0; use < 2; ++use) {
    try {
      pinned.data();
      ADD_FAILURE() << "no error";
    } catch (const EnvironmentError& error) {
      EXPECT_NE(std::string(error.what()).find("no 3145728 bytes that can be pinned"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("drop --offload-optimizer"), std::string::npos);
    }
  }
}

TEST(PinnedMemory, ThatCannotBeGivenBackEndsNothing) {
  device::CpuHostMemory real;
  device::FailingHostMemory failing(real, 1, /*for_good=*/true);
  { const PinnedMemory pinned(failing, kBytes); }
  EXPECT_TRUE(failing.has_failed());
}

}  // namespace
}  // namespace tandem::trainer
