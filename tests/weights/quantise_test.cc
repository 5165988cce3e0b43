// Matrices that are quantised have the codes that bitsandbytes gives them, and stores hold them.
#include "weights/quantise.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "base/files.h"
#include "base/rng.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"
#include "tests/golden/golden.h"
#include "tests/weights/small_layout.h"
#include "tests/weights/tensor_files.h"
#include "weights/weights_plan.h"

namespace tandem::weights {
namespace {

using device::Quantisation;
using device::QuantisedPart;

// One part, alone in its matrix.
struct OnePart {
  QuantisedPart part;
  std::vector<std::byte> bytes;

  device::QuantisedBytes view() const { return device::quantised_bytes(part, bytes.data()); }
};

// Quantises a matrix, which comes in pieces of that size.
OnePart quantise(Quantisation quantisation, const at::Tensor& matrix, int64_t piece, int num_threads = 2) {
  OnePart result;
  result.part = device::quantised_part(quantisation, 0, matrix.size(0), matrix.size(1), 0);
  result.bytes.resize(static_cast<size_t>(result.part.end_byte));
  const at::Tensor numbers = matrix.to(at::kFloat).contiguous();
  device::ThreadPool threads(num_threads);
  QuantisedWriter writer(result.part, result.bytes.data(), "a matrix", threads);
  for (int64_t begin = 0; begin < numbers.numel(); begin += piece) {
    writer.add(
        {numbers.const_data_ptr<float>() + begin, static_cast<size_t>(std::min(piece, numbers.numel() - begin))});
  }
  writer.finish();
  return result;
}

class GoldenQuantised : public testing::TestWithParam<std::string> {
 protected:
  at::Tensor read(const std::string& name) const { return read_tensor(file_, GetParam() + "." + name); }
  // Compares the bytes of a tensor of the file with those from `got` on.
  void expect_bytes(const std::string& name, const void* got) const {
    const TensorInfo& info = file_.tensor(GetParam() + "." + name);
    std::vector<std::byte> want(static_cast<size_t>(info.num_bytes()));
    file_.read(info, 0, want);
    EXPECT_EQ(std::memcmp(want.data(), got, want.size()), 0) << name;
  }
  void expect_weights(const std::string& name, const device::QuantisedBytes& got) const {
    const at::Tensor want = read(name).to(at::kFloat);
    for (int64_t i = 0; i < want.numel(); ++i) {
      ASSERT_EQ(static_cast<float>(at::BFloat16(device::weight_at(got, i))), want.const_data_ptr<float>()[i])
          << name << " " << i;
    }
  }

 private:
  SafetensorsFile file_{golden::directory() + "/quantised/quantised.safetensors"};
};

INSTANTIATE_TEST_SUITE_P(Matrices, GoldenQuantised, testing::Values("wide", "ragged", "odd"),
                         [](const auto& info) { return info.param; });

TEST_P(GoldenQuantised, Nf4HasTheCodesOfBitsandbytes) {
  for (const int64_t piece : {1, 50, 64, 1 << 20}) {
    const OnePart got = quantise(Quantisation::kNf4, read("weight"), piece);
    const device::QuantisedBytes view = got.view();
    expect_bytes("nf4", view.codes);
    expect_bytes("nf4.quant_map", device::kNf4Values);
    expect_bytes("nf4.nested_quant_map", view.table);
    // The mean is rounded once here, and a few times there.
    const auto offset = read("nf4.offset").item<float>();
    EXPECT_NEAR(view.table[device::kNf4TableSize], offset, 2e-7F * std::fabs(offset));
    expect_bytes("nf4.absmax", view.maxima);
    const at::Tensor scales = read("nf4.nested_absmax");
    ASSERT_EQ(scales.numel(), got.part.num_scales());
    for (int64_t i = 0; i < scales.numel(); ++i)
      EXPECT_NEAR(view.scales[i], scales.const_data_ptr<float>()[i], 2e-7F * offset);
  }
}

TEST_P(GoldenQuantised, Nf4StandsForTheWeightsOfBitsandbytes) {
  OnePart got = quantise(Quantisation::kNf4, read("weight"), 64);
  std::memcpy(got.bytes.data() + got.part.scales, read("nf4.nested_absmax").const_data_ptr(),
              static_cast<size_t>(got.part.num_scales()) * sizeof(float));
  std::memcpy(got.bytes.data() + got.part.table + device::kNf4TableSize * sizeof(float),
              read("nf4.offset").const_data_ptr(), sizeof(float));
  expect_weights("nf4.bfloat16", got.view());
}

TEST_P(GoldenQuantised, Int8HasTheCodesAndWeightsOfBitsandbytes) {
  for (const int64_t piece : {1, 50, 1 << 20}) {
    const OnePart got = quantise(Quantisation::kInt8, read("weight"), piece);
    expect_bytes("int8", got.view().codes);
    expect_bytes("int8.SCB", got.view().scales);
    expect_weights("int8.bfloat16", got.view());
  }
}

// A weight moves by at most half the widest step between two values, and by the error of its block's maximum.
at::Tensor random_matrix(uint64_t seed, int64_t rows, int64_t columns) {
  at::Tensor matrix = at::empty({rows, columns}, at::kFloat);
  for (int64_t i = 0; i < matrix.numel(); ++i) {
    const double x = base::uniform(seed, 0, static_cast<uint64_t>(i)) * 2.0 - 1.0;
    matrix.mutable_data_ptr<float>()[i] = static_cast<float>(x * x * x * 0.1);
  }
  return matrix;
}

TEST(Quantise, ErrorsStayWithinHalfAStep) {
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  const at::Tensor matrix = random_matrix(kSeed, 70, 96);
  const OnePart nf4 = quantise(Quantisation::kNf4, matrix, 1000), int8 = quantise(Quantisation::kInt8, matrix, 1000);
  for (int64_t i = 0; i < matrix.numel(); ++i) {
    const float x = matrix.const_data_ptr<float>()[i];
    ASSERT_NEAR(device::weight_at(nf4.view(), i), x, 0.16 * 0.1) << i;
    ASSERT_NEAR(device::weight_at(int8.view(), i), x, 0.51 / 127 * 0.1 + 6e-5) << i;
  }
}

// Pieces are larger and smaller than what a thread encodes at a time, and end within blocks and rows.
TEST(Quantise, ThreadsAndPiecesChangeNoBit) {
  const at::Tensor matrix = random_matrix(6, 371, 301);
  for (const Quantisation quantisation : {Quantisation::kNf4, Quantisation::kInt8}) {
    const OnePart want = quantise(quantisation, matrix, matrix.numel(), /*num_threads=*/1);
    for (const int num_threads : {1, 2, 4}) {
      for (const int64_t piece : {1000, 50'000, 111'671}) {
        EXPECT_EQ(quantise(quantisation, matrix, piece, num_threads).bytes, want.bytes) << num_threads << " " << piece;
      }
    }
  }
}

TEST(Quantise, NumbersThatAreNotFiniteAreRefused) {
  at::Tensor matrix = at::ones({4, 64});
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    matrix.mutable_data_ptr<float>()[100] = bad;
    EXPECT_THROW(quantise(Quantisation::kNf4, matrix, 64), UserError);
    EXPECT_THROW(quantise(Quantisation::kInt8, matrix, 64), UserError);
  }
  matrix.mutable_data_ptr<float>()[100] = 1e5F;
  EXPECT_NO_THROW(quantise(Quantisation::kNf4, matrix, 64));
  EXPECT_THROW(quantise(Quantisation::kInt8, matrix, 64), UserError);
}

Layout quantised_layout(Quantisation quantisation) {
  model::ModelConfig config = model::tiny_config(2, model::Dtype::kBFloat16);
  config.quantisation = quantisation;
  return model::build_layout(config);
}

TEST(QuantisedStore, HoldsTheMatricesOfBlocksAndNothingElse) {
  for (const Quantisation quantisation : {Quantisation::kNf4, Quantisation::kInt8}) {
    WeightStore plain(quantised_layout(Quantisation::kNone), at::kBFloat16);
    WeightStore store(quantised_layout(quantisation), at::kBFloat16);
    EXPECT_EQ(store.bytes(), store_bytes(store.layout(), 2));
    initialize_random(plain, 0.02, 7);
    initialize_random(store, 0.02, 7);
    int64_t num_quantised = 0;
    for (size_t i = 0; i < store.layout().tensors.size(); ++i) {
      const PackedTensor &packed = store.layout().tensors[i], &plain_packed = plain.layout().tensors[i];
      EXPECT_EQ(packed.is_quantised(), packed.takes_adapter) << packed.name;
      if (!packed.is_quantised()) {
        EXPECT_TRUE(at::equal(store.tensor(packed.name), plain.tensor(packed.name))) << packed.name;
        EXPECT_EQ(store.view().quantised(packed.name), nullptr);
        continue;
      }
      ++num_quantised;
      const device::QuantisedMatrix& matrix = store.quantised(packed.name);
      EXPECT_EQ(store.view().quantised(packed.name)->bytes.data_ptr(), matrix.bytes.data_ptr());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(matrix.bytes.data_ptr()) % 64, 0U);
      for (const Slice& slice : packed.slices) {
        const OnePart want = quantise(quantisation, plain.slice(plain_packed, slice), 64);
        const auto& part = *std::ranges::find(matrix.parts, slice.row_begin, &QuantisedPart::row_begin);
        ASSERT_EQ(part.end_byte - part.first_byte, want.part.end_byte);
        EXPECT_EQ(std::memcmp(static_cast<const std::byte*>(matrix.bytes.data_ptr()) + part.first_byte,
                              want.bytes.data(), want.bytes.size()),
                  0)
            << slice.hf_name;
      }
    }
    EXPECT_EQ(num_quantised, 2 * 4);
  }
}

WeightStore load(const std::string& directory, Quantisation quantisation) {
  model::ModelConfig config = model::read_model_config(directory);
  config.quantisation = quantisation;
  WeightStore store(model::build_layout(config), at::kBFloat16);
  load_hf_checkpoint(directory, store);
  return store;
}

// Checkpoints that transformers saved with bitsandbytes (tests/golden/quantised/make_checkpoints.py).
class StoredByBitsandbytes : public testing::TestWithParam<std::string> {
 protected:
  std::string directory() const { return golden::directory() + "/quantised/" + GetParam(); }
  Quantisation quantisation() const { return GetParam() == "nf4" ? Quantisation::kNf4 : Quantisation::kInt8; }
  // Writes the checkpoint with other tensors, and loads it.
  void load_changed(const std::function<void(std::map<std::string, at::Tensor>& tensors)>& change) const {
    const base::TemporaryDirectory folder;
    std::map<std::string, at::Tensor> tensors;
    const SafetensorsFile file(directory() + "/model.safetensors");
    for (const auto& [name, info] : file.tensors()) tensors.emplace(name, read_tensor(file, name));
    change(tensors);
    write_tensors(folder / "model.safetensors", tensors);
    base::write_file_durably(folder / "config.json", base::read_file(directory() + "/config.json"));
    load(folder / "", quantisation());
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, StoredByBitsandbytes, testing::Values("nf4", "int8"),
                         [](const auto& info) { return info.param; });

// The codes of its compiled library are those of its kernels in PyTorch but for absolute maxima between two values.
TEST_P(StoredByBitsandbytes, HoldsTheCodesOfTheFileAndTheseAreWhatIsMadeOfTheModel) {
  EXPECT_EQ(model::read_model_config(directory()).file_quantisation, quantisation());
  const WeightStore store = load(directory(), quantisation());
  const WeightStore made = load(golden::directory() + "/models/qwen3-tied", quantisation());
  const SafetensorsFile file(directory() + "/model.safetensors");
  int64_t num_matrices = 0;
  for (const PackedTensor& packed : store.layout().tensors) {
    if (!packed.is_quantised()) {
      EXPECT_TRUE(at::equal(store.tensor(packed.name), made.tensor(packed.name))) << packed.name;
      continue;
    }
    for (const Slice& slice : packed.slices) {
      ++num_matrices;
      const device::QuantisedMatrix &got = store.quantised(packed.name), &own = made.quantised(packed.name);
      const QuantisedPart& part = got.part_at(slice.row_begin);
      std::vector<std::byte> codes(static_cast<size_t>(part.num_code_bytes()));
      file.read(file.tensor(slice.hf_name), 0, codes);
      EXPECT_EQ(std::memcmp(codes.data(), got.data() + part.codes, codes.size()), 0) << slice.hf_name;
      EXPECT_EQ(std::memcmp(codes.data(), own.data() + part.codes, codes.size()), 0) << slice.hf_name;
      const auto weights = device::quantised_bytes(part, got.data()),
                 others = device::quantised_bytes(part, own.data());
      for (int64_t i = 0; i < part.num_weights(); ++i) {
        // A neighbouring code of an absolute maximum is 3 % away at most.
        const float want = device::weight_at(others, i);
        ASSERT_NEAR(device::weight_at(weights, i), want, 0.03F * std::fabs(want)) << slice.hf_name << " " << i;
      }
    }
  }
  EXPECT_EQ(num_matrices, 3 * 7);
}

TEST_P(StoredByBitsandbytes, AnotherLayoutRefusesIt) {
  const std::string want = GetParam() == "nf4" ? "has dtype U8; only" : "has dtype I8; only";
  try {
    load(directory(), Quantisation::kNone);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find(want), std::string::npos) << error.what();
  }
}

// transformers quantises routers too, which no adapter can have: they are brought back to the store's dtype.
TEST(StoredExperts, AreTheWeightsOfBitsandbytesAndSoIsTheirRouter) {
  const std::string folder = golden::directory() + "/quantised/";
  const WeightStore store = load(folder + "experts_nf4", Quantisation::kNf4);
  const SafetensorsFile file(folder + "experts_nf4_weights.safetensors");
  int64_t num_compared = 0;
  for (const PackedTensor& packed : store.layout().tensors) {
    EXPECT_EQ(packed.is_quantised(), packed.takes_adapter) << packed.name;
    for (const Slice& slice : packed.slices) {
      if (!file.tensors().contains(slice.hf_name)) continue;
      ++num_compared;
      const at::Tensor want = read_tensor(file, slice.hf_name);
      at::Tensor got = at::empty(slice.shape, at::kBFloat16);
      if (packed.is_quantised()) {
        const device::QuantisedMatrix& matrix = store.quantised(packed.name);
        const auto weights = device::quantised_bytes(matrix.part_at(slice.row_begin), matrix.data());
        for (int64_t i = 0; i < got.numel(); ++i) got.data_ptr<at::BFloat16>()[i] = device::weight_at(weights, i);
      } else {
        got = store.slice(packed, slice);
      }
      EXPECT_TRUE(at::equal(got, want)) << slice.hf_name;
    }
  }
  EXPECT_EQ(num_compared, 4);
}

using StoredNf4 = StoredByBitsandbytes;
INSTANTIATE_TEST_SUITE_P(Kinds, StoredNf4, testing::Values("nf4"), [](const auto& info) { return info.param; });

TEST_P(StoredNf4, WhatIsWrongInItIsNamed) {
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  const std::string state = name + ".quant_state.bitsandbytes__nf4";
  const auto text = [&](const std::string& json) {
    const at::Tensor bytes = at::empty({std::ssize(json)}, at::kByte);
    std::memcpy(bytes.data_ptr(), json.data(), json.size());
    return bytes;
  };
  const std::map<std::string, std::function<void(std::map<std::string, at::Tensor>&)>> cases = {
      {"lack tensor \"" + name + ".absmax\"", [&](auto& tensors) { tensors.erase(name + ".absmax"); }},
      {"absmax\" is F32 [160], and U8 [160] for a matrix that bitsandbytes quantised",
       [&](auto& tensors) { tensors[name + ".absmax"] = at::ones({160}); }},
      {"up_proj.weight\" is U8 [5120], and U8 [5120, 1]",
       [&](auto& tensors) { tensors[name] = tensors[name].view({-1}); }},
      {"bitsandbytes__nf4\" has no number blocksize", [&](auto& tensors) { tensors[state] = text("{}"); }},
      {"bitsandbytes__nf4\":1:2: syntax error", [&](auto& tensors) { tensors[state] = text("no json"); }},
      {"blocksize is 128, and only 64 is read",
       [&](auto& tensors) {
         tensors[state] = text(R"({"blocksize": 128, "nested_blocksize": 256, "nested_offset": 1})");
       }},
      {"nested_offset is ",
       [&](auto& tensors) {
         tensors[state] = text(R"({"blocksize": 64, "nested_blocksize": 256, "nested_offset": 1e39})");
       }},
      {"has other values than NF4", [&](auto& tensors) { tensors[name + ".quant_map"].fill_(0.5); }},
      {"nested_absmax\" holds a number that is not finite",
       [&](auto& tensors) { tensors[name + ".nested_absmax"].fill_(std::numeric_limits<float>::infinity()); }},
      {"is not part of the model", [&](auto& tensors) { tensors[name + ".other"] = at::ones({1}); }},
  };
  for (const auto& [message, change] : cases) {
    try {
      load_changed(change);
      ADD_FAILURE() << "no error: " << message;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what() << "\nwanted " << message;
    }
  }
}

TEST_P(StoredNf4, AMatrixThatIsNotQuantisedThereIsAsItIsRead) {
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  testing::internal::CaptureStderr();
  load_changed([&](auto& tensors) {
    std::erase_if(tensors, [&](const auto& entry) { return entry.first.starts_with(name); });
    tensors[name] = at::ones({160, 64}, at::kBFloat16);
  });
  EXPECT_NE(testing::internal::GetCapturedStderr().find("1 of 21 matrices are not quantised there"), std::string::npos);
}

}  // namespace
}  // namespace tandem::weights
