// A store that starts from tensors in memory: it gets the same bits as from files, a refusal changes nothing, and each
// tensor is freed as soon as it is copied.
#include "weights/adopt.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>

#include "tests/weights/file_bytes.h"
#include "tests/weights/pretend_device.h"
#include "tests/weights/small_layout.h"
#include "tests/weights/starting_states.h"
#include "weights/safetensors.h"

namespace tandem::weights {
namespace {

constexpr std::array<at::ScalarType, 2> kStoreDtypes = {at::kFloat, at::kBFloat16};
constexpr std::array<at::ScalarType, 3> kSourceDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

// The layout has one tensor of the model's, and two that are larger than a staging buffer in any dtype and no multiple
// of one.
Layout large_layout() {
  Layout layout;
  const std::vector<int64_t> shape = {1501, 1500};
  layout.tensors = {
      {.name = "norm", .shape = {13}, .slices = {{.hf_name = "norm", .shape = {13}}}},
      {.name = "pair",
       .shape = {3002, 1500},
       .slices = {{.hf_name = "a", .shape = shape}, {.hf_name = "b", .shape = shape, .row_begin = 1501}}}};
  return layout;
}

// This is the written-out definition: each slice is its tensor, rounded once.
void expect_converted(const WeightStore& store, const HfTensors& sources) {
  for (const PackedTensor& packed : store.layout().tensors) {
    for (const Slice& slice : packed.slices) {
      const at::Tensor expected = sources.at(slice.hf_name).cpu().to(at::kFloat).to(store.dtype());
      const at::Tensor actual = store.slice(packed, slice).cpu();
      EXPECT_EQ(std::memcmp(actual.data_ptr(), expected.data_ptr(), expected.nbytes()), 0) << slice.hf_name;
    }
  }
}

TEST(StartingStates, AllGiveTheSameBits) {
  for (const Layout& layout : {small_layout(), large_layout()}) {
    for (const at::ScalarType from : kSourceDtypes) {
      const HfTensors sources = some_tensors(layout, from);
      const TemporaryDirectory directory;
      write_directory(directory.path(), sources);
      for (const at::ScalarType to : kStoreDtypes) {
        SCOPED_TRACE(std::string(c10::toString(from)) + " to " + c10::toString(to));
        WeightStore files(layout, to), adopted(layout, to);
        load_hf_checkpoint(directory.path(), files);
        expect_converted(files, sources);
        adopt(HfTensors(sources), adopted);
        expect_same_bits(adopted, files);

        WeightStore files_later = WeightStore::without_storage(layout, to);
        load_hf_checkpoint(directory.path(), files_later);
        expect_same_bits(files_later, files);
        WeightStore adopted_later = WeightStore::without_storage(layout, to);
        adopt(HfTensors(sources), adopted_later);
        expect_same_bits(adopted_later, files);
      }
    }
  }
}

TEST(Adopt, TakesAnyStridesAndParameters) {
  Layout layout;
  layout.tensors = {{.name = "w", .shape = {300, 70}, .slices = {{.hf_name = "w", .shape = {300, 70}}}}};
  for (const at::ScalarType to : kStoreDtypes) {
    const at::Tensor wide = at::arange(70 * 600, at::kFloat).sin().view({70, 600});
    const at::Tensor transposed = wide.narrow(1, 100, 300).t();
    WeightStore store(layout, to);
    HfTensors sources = {{"w", at::Tensor(transposed.detach()).set_requires_grad(true)}};
    adopt(std::move(sources), store);
    EXPECT_TRUE(at::equal(store.tensor("w"), transposed.to(to)));
    EXPECT_FALSE(store.tensor("w").requires_grad());
  }
}

TEST(Adopt, TakesTheHandlesAndIgnoresWhatTheLayoutIgnores) {
  WeightStore store(small_layout(/*tied=*/true), at::kFloat);
  HfTensors sources = some_tensors(store.layout(), at::kFloat);
  ASSERT_EQ(store.layout().ignored, std::vector<std::string>{"lm_head.weight"});
  sources.emplace("lm_head.weight", at::zeros({1}, at::kInt));
  const HfTensors copy = sources;
  adopt(std::move(sources), store);
  EXPECT_TRUE(sources.empty());  // NOLINT: that is its promise
  expect_converted(store, copy);
}

// When a tensor is dropped, its slice is filled and the next one is not.
TEST(Adopt, DropsEachTensorBeforeTheNextIsCopied) {
  const Layout layout = small_layout();
  for (const at::ScalarType to : kStoreDtypes) {
    WeightStore store(layout, to);
    for (const PackedTensor& packed : layout.tensors) store.tensor(packed.name).fill_(-1);
    std::vector<at::Tensor> slices;
    for (const PackedTensor& packed : layout.tensors) {
      for (const Slice& slice : packed.slices) slices.push_back(store.slice(packed, slice));
    }
    std::vector<float> memory(5000, 2.0F);  // larger than any of the tensors
    size_t num_dropped = 0;
    HfTensors sources;
    size_t index = 0;
    for (const PackedTensor& packed : layout.tensors) {
      for (const Slice& slice : packed.slices) {
        const auto deleter = [&, index](void*) {
          EXPECT_EQ(index, num_dropped++);
          EXPECT_TRUE(slices[index].eq(2).all().item<bool>()) << index;
          const bool is_last = index + 1 == slices.size();
          EXPECT_TRUE(is_last || slices[index + 1].eq(-1).all().item<bool>()) << index;
        };
        ASSERT_LE(slice.num_elements(), 5000);
        sources.emplace(slice.hf_name,
                        at::from_blob(memory.data(), slice.shape, deleter, at::TensorOptions(at::kFloat)));
        ++index;
      }
    }
    adopt(std::move(sources), store);
    EXPECT_EQ(num_dropped, slices.size());
  }
}

TEST(Adopt, RefusesBeforeAnythingChanges) {
  struct Row {
    const char* what;
    std::function<void(HfTensors&)> spoil;
    std::vector<std::string> says;
  };
  const std::string name = "model.layers.1.self_attn.k_proj.weight";
  const auto as = [&](at::ScalarType dtype) {
    return [&name, dtype](HfTensors& t) { t.at(name) = t.at(name).to(dtype); };
  };
  const std::vector<Row> rows = {
      {"missing", [&](HfTensors& t) { t.erase(name); }, {name, "lack"}},
      {"extra", [&](HfTensors& t) { t.emplace("model.layers.2.bias", t.at(name)); }, {"model.layers.2.bias", "no"}},
      {"shape", [&](HfTensors& t) { t.at(name) = t.at(name).t(); }, {name, "[24, 6]", "[6, 24]"}},
      {"float64", as(at::kDouble), {name, "Double", "F32, BF16 and F16"}},
      {"integers", as(at::kInt), {name, "Int"}},
      {"bool", as(at::kBool), {name, "Bool"}},
      {"undefined", [&](HfTensors& t) { t.at(name) = at::Tensor(); }, {name, "no values"}},
      {"meta", [&](HfTensors& t) { t.at(name) = t.at(name).to(at::kMeta); }, {name, "no values", "meta"}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    const HfTensors good = some_tensors(small_layout(), at::kFloat);
    HfTensors sources = good;
    row.spoil(sources);
    const size_t num_sources = sources.size();
    WeightStore empty = WeightStore::without_storage(small_layout(), at::kFloat);
    const std::string message = user_error_of([&] { adopt(std::move(sources), empty); });
    for (const std::string& text : row.says) EXPECT_NE(message.find(text), std::string::npos) << message;
    EXPECT_FALSE(empty.has_storage());
    EXPECT_EQ(sources.size(), num_sources);  // NOLINT: refused, so not taken

    WeightStore filled(small_layout(), at::kFloat), same(small_layout(), at::kFloat);
    initialize_random(filled, 0.02, 1);
    initialize_random(same, 0.02, 1);
    user_error_of([&] { adopt(std::move(sources), filled); });
    expect_same_bits(filled, same);
    EXPECT_EQ(sources.size(), num_sources);
    adopt(HfTensors(good), empty);  // the store can still be filled
    expect_converted(empty, good);
  }
}

TEST(LoadHfCheckpoint, RefusesBeforeItTakesStorage) {
  const TemporaryDirectory directory;
  HfTensors sources = some_tensors(small_layout(), at::kFloat);
  sources.erase("model.norm.weight");
  write_directory(directory.path(), sources);
  WeightStore store = WeightStore::without_storage(small_layout(), at::kFloat);
  user_error_of([&] { load_hf_checkpoint(directory.path(), store); });
  EXPECT_FALSE(store.has_storage());
}

TEST(ExportHfCheckpoint, OfNothingIsABug) {
  const TemporaryDirectory directory;
  const WeightStore store = WeightStore::without_storage(small_layout(), at::kFloat);
  EXPECT_THROW(export_hf_checkpoint(directory / "out", store, {.source_directory = directory.path()}), BugError);
}

HfTensors on_device(const HfTensors& tensors) {
  HfTensors result;
  for (const auto& [name, tensor] : tensors) result.emplace(name, tensor.to(pretend_device::device()));
  return result;
}

int64_t bytes_of(const HfTensors& tensors) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

// The device has room for the old weights or for the store, never for both.
TEST(AdoptFromDevice, NeedsRoomForTheWeightsOnce) {
  const Layout layout = large_layout();
  for (const at::ScalarType from : kSourceDtypes) {
    for (const at::ScalarType to : kStoreDtypes) {
      SCOPED_TRACE(std::string(c10::toString(from)) + " to " + c10::toString(to));
      const HfTensors sources = some_tensors(layout, from);
      WeightStore store = WeightStore::without_storage(layout, to, pretend_device::device());
      pretend_device::reset(std::max(bytes_of(sources), store.bytes()));
      HfTensors resident = on_device(sources);
      ASSERT_EQ(pretend_device::live_bytes(), bytes_of(sources));
      adopt(std::move(resident), store);
      EXPECT_EQ(pretend_device::live_bytes(), store.bytes());
      EXPECT_EQ(pretend_device::held_bytes(), store.bytes());
      EXPECT_EQ(pretend_device::num_conversions(), 0);  // LibTorch would take a buffer for each
      expect_converted(store, sources);
    }
  }
}

TEST(AdoptFromDevice, StorageThatIsThereIsFilledFromTheDevice) {
  const HfTensors sources = some_tensors(small_layout(), at::kHalf);
  for (const at::Device device : {at::Device(at::kCPU), pretend_device::device()}) {
    pretend_device::reset(1 << 20);
    WeightStore store(small_layout(), at::kBFloat16, device);
    adopt(on_device(sources), store);
    expect_converted(store, sources);
    EXPECT_EQ(pretend_device::live_bytes(), device.is_cpu() ? 0 : store.bytes());
  }
}

TEST(AdoptFromDevice, TransposedTensorsGoOverRowByRow) {
  pretend_device::reset(1 << 20);
  Layout layout;
  layout.tensors = {{.name = "w", .shape = {30, 7}, .slices = {{.hf_name = "w", .shape = {30, 7}}}}};
  const at::Tensor host = at::arange(210, at::kFloat).sin().view({7, 30});
  WeightStore on_host(layout, at::kBFloat16), on_device(layout, at::kBFloat16, pretend_device::device());
  adopt({{"w", host.to(pretend_device::device()).t()}}, on_host);
  adopt({{"w", host.t()}}, on_device);
  EXPECT_TRUE(at::equal(on_host.tensor("w"), host.t().to(at::kBFloat16)));
  expect_same_bits(on_device, on_host);
}

TEST(AdoptFromDevice, ADeviceWithoutRoomLeavesTheTensors) {
  const HfTensors sources = some_tensors(small_layout(), at::kBFloat16);
  WeightStore store = WeightStore::without_storage(small_layout(), at::kFloat, pretend_device::device());
  pretend_device::reset(store.bytes() - 1);
  HfTensors resident = on_device(sources);
  EXPECT_THROW(adopt(std::move(resident), store), EnvironmentError);
  EXPECT_FALSE(store.has_storage());
  ASSERT_EQ(resident.size(), sources.size());  // NOLINT: that is its promise
  for (const auto& [name, tensor] : resident) EXPECT_TRUE(at::equal(tensor.cpu(), sources.at(name))) << name;
}

// This is the state of a paused region: the bytes are on a device and have another owner.
TEST(AttachOnDevice, TensorsLieInTheMemoryThatWasGiven) {
  pretend_device::reset(1 << 20);
  WeightStore store = WeightStore::without_storage(small_layout(), at::kFloat, pretend_device::device());
  const at::Tensor memory = at::empty({store.bytes()}, at::TensorOptions(at::kByte).device(pretend_device::device()));
  store.attach(static_cast<std::byte*>(memory.data_ptr()));
  EXPECT_EQ(store.device(), pretend_device::device());
  EXPECT_EQ(store.tensor("final_norm").device(), pretend_device::device());
  const HfTensors sources = some_tensors(small_layout(), at::kHalf);
  HfTensors resident = on_device(sources);
  move_to_host(resident);
  EXPECT_EQ(pretend_device::held_bytes(), store.bytes());
  adopt(std::move(resident), store);
  expect_converted(store, sources);
  EXPECT_EQ(pretend_device::peak_live_bytes(), store.bytes() + bytes_of(sources));
}

TEST(InitializeRandomOnDevice, IsTheHostsBits) {
  const Layout layout = large_layout();
  for (const at::ScalarType dtype : kStoreDtypes) {
    pretend_device::reset(int64_t{32} << 20);
    WeightStore host(layout, dtype);
    WeightStore device = WeightStore::without_storage(layout, dtype, pretend_device::device());
    initialize_random(host, 0.02, 9);
    initialize_random(device, 0.02, 9);
    expect_same_bits(device, host);
  }
}

}  // namespace
}  // namespace tandem::weights
