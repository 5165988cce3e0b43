// Weights that live on the host and visit the device: they have the same bytes and description wherever they are, and
// have left the device after a visit on every path.
#include "weights/offloaded_store.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "device/cpu/cpu_host_memory.h"
#include "tandem/error.h"
#include "tests/device/memory/failing_vmm.h"
#include "tests/weights/small_layout.h"

namespace tandem::weights {
namespace {

struct OffloadedStoreTest : testing::Test {
  device::CpuHostMemory memory;
  WeightStore expected{small_layout(), at::kBFloat16};
  OffloadedStoreTest() { initialize_random(expected, 0.1, 3); }

  void expect_the_weights(const WeightStore& store) const {
    for (const PackedTensor& packed : expected.layout().tensors)
      EXPECT_TRUE(at::equal(store.tensor(packed.name), expected.tensor(packed.name))) << packed.name;
  }
};

TEST_F(OffloadedStoreTest, AVisitBringsTheWeightsAndTakesThemAway) {
  OffloadedStore store(small_layout(), at::kBFloat16, at::kCPU, memory);
  initialize_random(store.host(), 0.1, 3);
  store.host().set_version(7);
  const WeightSpec info = store.info();
  EXPECT_EQ(info, expected.info());
  for (int i = 0; i < 2; ++i) {
    const OffloadedStore::OnDeviceScope visit = store.to_device();
    expect_the_weights(visit.store());
    EXPECT_EQ(visit.store().version(), 7U);
    EXPECT_NE(visit.store().tensor("embed").const_data_ptr(), store.host().tensor("embed").const_data_ptr());
    EXPECT_EQ(store.info(), info);
    EXPECT_THROW(store.to_device(), BugError) << "visits do not nest";
  }
  expect_the_weights(store.host());
}

TEST_F(OffloadedStoreTest, TheyGoWhenAVisitEndsWithAnException) {
  OffloadedStore store(small_layout(), at::kBFloat16, at::kCPU, memory);
  EXPECT_THROW(
      {
        const OffloadedStore::OnDeviceScope visit = store.to_device();
        throw std::runtime_error("an export that fails");
      },
      std::runtime_error);
  EXPECT_NO_THROW(store.to_device()) << "nothing of it is there";
}

TEST_F(OffloadedStoreTest, ACopyThatFailsLeavesNothingOnTheDevice) {
  // Call 0 pins; 1 and 2 are the copy and the wait for it.
  for (const int64_t k : {1, 2}) {
    device::FailingHostMemory failing(memory, k, /*for_good=*/false);
    OffloadedStore store(small_layout(), at::kBFloat16, at::kCPU, failing);
    EXPECT_THROW(store.to_device(), EnvironmentError) << k;
    EXPECT_NO_THROW(store.to_device()) << "the next one works";
  }
}

TEST_F(OffloadedStoreTest, AHostWithoutMemoryIsAnErrorThatSaysWhatToLeaveOut) {
  device::FailingHostMemory failing(memory, 0, /*for_good=*/true);
  try {
    const OffloadedStore store(small_layout(), at::kBFloat16, at::kCPU, failing);
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("--offload-reference"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tandem::weights
