// The one copy of the weights: tensors have their places, views hold what they promise, and random weights have the
// right distribution.
#include "weights/store.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>

#include "tandem/error.h"
#include "tests/pretend_device/pretend_device.h"
#include "tests/weights/small_layout.h"
#include "tests/weights/starting_states.h"

namespace tandem::weights {
namespace {

TEST(WeightStore, TensorsAreAlignedContiguousAndDisjoint) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const WeightStore store(small_layout(), dtype);
    const char* end_of_last = nullptr;
    for (const PackedTensor& packed : store.layout().tensors) {
      const at::Tensor& tensor = store.tensor(packed.name);
      const char* begin = static_cast<const char*>(tensor.data_ptr());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(begin) % 64, 0U) << packed.name;
      EXPECT_TRUE(tensor.is_contiguous());
      EXPECT_EQ(tensor.sizes().vec(), packed.shape);
      EXPECT_EQ(tensor.scalar_type(), dtype);
      EXPECT_GE(begin, end_of_last) << packed.name;
      end_of_last = begin + tensor.nbytes();
      tensor.fill_(1);  // under the address sanitizer: all of it is ours
    }
    const int64_t element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
    const int64_t tight_bytes = store.layout().num_elements() * element_bytes;
    EXPECT_GE(store.bytes(), tight_bytes);
    EXPECT_LT(store.bytes(), tight_bytes + 64 * static_cast<int64_t>(store.layout().tensors.size()));
  }
}

TEST(WeightStore, ViewsAreTheSameBytesAndKeepTheirVersion) {
  WeightStore store(small_layout(), at::kFloat);
  initialize_random(store, 0.02, 1);
  const WeightsView view = store.view();
  EXPECT_EQ(view.version(), 0U);
  store.tensor("final_norm").fill_(3);
  store.publish();
  EXPECT_EQ(store.version(), 1U);
  EXPECT_EQ(view.version(), 0U);
  EXPECT_EQ(view["final_norm"].data_ptr(), store.tensor("final_norm").data_ptr());
  EXPECT_EQ(view["final_norm"].const_data_ptr<float>()[0], 3.0F);
  EXPECT_EQ(store.view().version(), 1U);
  EXPECT_TRUE(view.has("head"));
  EXPECT_FALSE(view.has("layers.2.qkv"));
  EXPECT_THROW(view["layers.2.qkv"], BugError);
  EXPECT_THROW(store.tensor("nothing"), BugError);
}

TEST(WeightStore, SlicesAreRowsOfTheirPackedTensor) {
  const WeightStore store(small_layout(), at::kFloat);
  const PackedTensor& qkv = store.layout().find("layers.1.qkv");
  const at::Tensor v = store.slice(qkv, qkv.slices[2]);
  EXPECT_EQ(v.sizes().vec(), qkv.slices[2].shape);
  EXPECT_EQ(v.data_ptr<float>(), store.tensor("layers.1.qkv").data_ptr<float>() + (18 + 6) * 24);
}

TEST(WeightStore, TensorsOutliveTheirStore) {
  at::Tensor norm;
  {
    WeightStore store(small_layout(), at::kFloat);
    store.tensor("final_norm").fill_(2);
    norm = store.tensor("final_norm");
  }
  EXPECT_EQ(norm.sum().item<float>(), 48.0F);
}

TEST(WeightStore, MoreThanTheMachineHasIsTheMachinesError) {
  Layout layout;
  layout.tensors.push_back({.name = "x", .shape = {int64_t{1} << 40, int64_t{1} << 15}, .slices = {}});
  try {
    const WeightStore store(layout, at::kFloat);
    FAIL() << "allocated";
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("GiB"), std::string::npos);
  }
}

TEST(WeightStore, WithoutStorageKnowsAllButTheBytes) {
  WeightStore store = WeightStore::without_storage(small_layout(), at::kBFloat16);
  const WeightStore other(small_layout(), at::kBFloat16);
  EXPECT_FALSE(store.has_storage());
  EXPECT_EQ(store.bytes(), other.bytes());
  EXPECT_EQ(store.device(), at::Device(at::kCPU));
  EXPECT_EQ(store.dtype(), at::kBFloat16);
  store.publish();
  EXPECT_EQ(store.version(), 1U);
  const PackedTensor& qkv = store.layout().find("layers.1.qkv");
  for (const std::function<void()>& use : std::vector<std::function<void()>>{
           [&] { store.tensor("final_norm"); }, [&] { store.view(); }, [&] { store.slice(qkv, qkv.slices[0]); }}) {
    try {
      use();
      ADD_FAILURE() << "used";
    } catch (const BugError& error) {
      EXPECT_NE(std::string(error.what()).find("before the weights have storage"), std::string::npos) << error.what();
    }
  }
  store.allocate();
  EXPECT_TRUE(store.has_storage());
  EXPECT_EQ(store.version(), 1U);
  for (const PackedTensor& packed : store.layout().tensors) store.tensor(packed.name).fill_(1);
  EXPECT_THROW(store.allocate(), BugError);
}

TEST(WeightStore, UsesMemoryThatItIsGiven) {
  WeightStore store = WeightStore::without_storage(small_layout(), at::kFloat);
  // The memory has exactly as many bytes: under the address sanitizer, one more is a fault. One cache line more makes
  // it unaligned.
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(64, static_cast<size_t>(store.bytes() + 64))), &std::free);
  EXPECT_THROW(store.attach(memory.get() + 32), BugError);
  EXPECT_THROW(store.attach(nullptr), BugError);
  EXPECT_FALSE(store.has_storage());
  std::byte* const data = memory.get() + 64;
  std::fill_n(data, store.bytes(), std::byte{0});
  store.attach(data);
  EXPECT_THROW(store.attach(data), BugError);
  EXPECT_THROW(store.allocate(), BugError);
  EXPECT_EQ(store.tensor(store.layout().tensors[0].name).data_ptr(), data);
  EXPECT_EQ(store.tensor("final_norm").sum().item<float>(), 0.0F);  // unchanged
  WeightStore own(small_layout(), at::kFloat);
  initialize_random(store, 0.02, 5);
  initialize_random(own, 0.02, 5);
  for (const PackedTensor& packed : store.layout().tensors) {
    const at::Tensor& tensor = store.tensor(packed.name);
    EXPECT_GE(static_cast<std::byte*>(tensor.data_ptr()), data);
    EXPECT_LE(static_cast<std::byte*>(tensor.data_ptr()) + tensor.nbytes(), data + store.bytes());
    EXPECT_TRUE(at::equal(tensor, own.tensor(packed.name))) << packed.name;
  }
}

// The bytes are on a device and have another owner.
TEST(AttachOnDevice, TensorsLieInTheMemoryThatWasGiven) {
  pretend_device::reset(1 << 20);
  WeightStore host(small_layout(), at::kFloat);
  WeightStore store = WeightStore::without_storage(small_layout(), at::kFloat, pretend_device::device());
  const at::Tensor memory = at::empty({store.bytes()}, at::TensorOptions(at::kByte).device(pretend_device::device()));
  store.attach(static_cast<std::byte*>(memory.data_ptr()));
  EXPECT_EQ(store.device(), pretend_device::device());
  EXPECT_EQ(store.tensor("final_norm").device(), pretend_device::device());
  initialize_random(host, 0.02, 9);
  initialize_random(store, 0.02, 9);
  expect_same_bits(store, host);
  EXPECT_EQ(pretend_device::peak_live_bytes(), store.bytes());
}

TEST(WeightStore, InfoIsTheSameWithAndWithoutStorage) {
  for (const auto& [dtype, name] : {std::pair(at::kFloat, "F32"), std::pair(at::kBFloat16, "BF16")}) {
    WeightStore store = WeightStore::without_storage(small_layout(), dtype);
    const WeightSpec expected = weight_spec(small_layout(), name);  // computed from the configuration alone
    EXPECT_EQ(store.info(), expected);
    initialize_random(store, 0.02, 1);
    EXPECT_EQ(store.info(), expected);
    store.publish();
    EXPECT_EQ(store.info(), expected);
  }
}

TEST(InitializeRandom, DependsOnSeedAloneAndHasTheDeviationAskedFor) {
  model::ModelConfig config = model::odd_config(/*tied=*/true);
  config.vocab = 5000;
  WeightStore store(model::build_layout(config), at::kFloat), same(store.layout(), at::kFloat),
      other(store.layout(), at::kFloat);
  initialize_random(store, 0.2, 7);
  initialize_random(same, 0.2, 7);
  initialize_random(other, 0.2, 8);
  for (const PackedTensor& packed : store.layout().tensors) {
    const at::Tensor& tensor = store.tensor(packed.name);
    EXPECT_TRUE(at::equal(tensor, same.tensor(packed.name))) << packed.name;
    const bool is_norm = packed.init == Init::kOnes;
    EXPECT_EQ(at::equal(tensor, other.tensor(packed.name)), is_norm) << packed.name;
    if (is_norm) {
      EXPECT_TRUE(at::equal(tensor, at::ones_like(tensor))) << packed.name;
    }
  }
  EXPECT_FALSE(at::equal(store.tensor("layers.0.qkv"), store.tensor("layers.1.qkv")));
  // There are 120,000 draws: the mean lies within 5 of its deviations (0.2 / 346), the deviation within 1 %, the fourth
  // moment, 3, within 5 %.
  const at::Tensor embed = store.tensor("embed").to(at::kDouble);
  EXPECT_NEAR(embed.mean().item<double>(), 0.0, 0.003);
  EXPECT_NEAR(embed.std().item<double>(), 0.2, 0.002);
  EXPECT_NEAR(embed.pow(4).mean().item<double>() / std::pow(0.2, 4), 3.0, 0.15);
}

TEST(InitializeRandom, BeginsAsTheLayoutSaysWhateverTheRank) {
  Layout layout;
  layout.tensors = {{.name = "drawn", .shape = {9}, .slices = {}},
                    {.name = "ones", .shape = {3, 4}, .slices = {}, .init = Init::kOnes},
                    {.name = "zeros", .shape = {5}, .slices = {}, .init = Init::kZeros}};
  WeightStore store(layout, at::kBFloat16);
  initialize_random(store, 0.2, 7);
  EXPECT_GT(store.tensor("drawn").abs().min().item<float>(), 0.0F);
  EXPECT_TRUE(at::equal(store.tensor("ones"), at::ones_like(store.tensor("ones"))));
  EXPECT_EQ(store.tensor("zeros").abs().max().item<float>(), 0.0F);
}

TEST(InitializeRandom, BFloat16IsTheRoundedFloat32) {
  WeightStore wide(small_layout(), at::kFloat), narrow(small_layout(), at::kBFloat16);
  initialize_random(wide, 0.02, 3);
  initialize_random(narrow, 0.02, 3);
  for (const PackedTensor& packed : wide.layout().tensors) {
    EXPECT_TRUE(at::equal(wide.tensor(packed.name).to(at::kBFloat16), narrow.tensor(packed.name))) << packed.name;
  }
}

TEST(InitializeRandomOnDevice, IsTheHostsBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    pretend_device::reset(int64_t{32} << 20);
    WeightStore host(large_layout(), dtype);
    WeightStore device = WeightStore::without_storage(large_layout(), dtype, pretend_device::device());
    initialize_random(host, 0.02, 9);
    initialize_random(device, 0.02, 9);
    expect_same_bits(device, host);
  }
}

}  // namespace
}  // namespace tandem::weights
