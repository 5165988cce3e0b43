// Checkpoints that a store is filled from: tensors of each dtype by Hugging Face name, in memory and as a directory.
#pragma once

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>
#include <string>

#include "tests/weights/tensor_files.h"
#include "weights/store.h"

namespace tandem::weights {

using HfTensors = std::map<std::string, at::Tensor>;

// The layout has one tensor of the model's, and two that are larger than a staging buffer in any dtype and no multiple
// of one.
inline Layout large_layout() {
  Layout layout;
  const std::vector<int64_t> shape = {1501, 1500};
  layout.tensors = {
      {.name = "norm", .shape = {13}, .slices = {{.hf_name = "norm", .shape = {13}}}},
      {.name = "pair",
       .shape = {3002, 1500},
       .slices = {{.hf_name = "a", .shape = shape}, {.hf_name = "b", .shape = shape, .row_begin = 1501}}}};
  return layout;
}

// Returns numbers of both signs that need rounding, the largest float16, infinity and a tiny number. They include no
// NaN: LibTorch's vectors and the elements after them give it different bits.
inline HfTensors some_tensors(const Layout& layout, at::ScalarType dtype) {
  HfTensors tensors;
  float phase = 0;
  for (const PackedTensor& packed : layout.tensors) {
    for (const Slice& slice : packed.slices) {
      const at::Tensor values = at::arange(c10::multiply_integers(slice.shape), at::kFloat).add_(phase).sin_();
      values[0].fill_(65504.0F);
      values[1].fill_(std::numeric_limits<float>::infinity());
      values[-1].fill_(-0x1.0p-20F);
      tensors.emplace(slice.hf_name, values.view(slice.shape).to(dtype));
      phase += 0.25F;
    }
  }
  return tensors;
}

inline void write_directory(const std::string& directory, const HfTensors& tensors) {
  write_tensors(directory + "/model.safetensors", tensors);
}

// Compares every weight, bit for bit; padding between tensors does not count.
inline void expect_same_bits(const WeightStore& store, const WeightStore& expected) {
  ASSERT_EQ(store.info(), expected.info());
  for (const PackedTensor& packed : expected.layout().tensors) {
    const at::Tensor tensor = store.tensor(packed.name).cpu(), other = expected.tensor(packed.name).cpu();
    ASSERT_EQ(tensor.nbytes(), other.nbytes());
    EXPECT_EQ(std::memcmp(tensor.data_ptr(), other.data_ptr(), tensor.nbytes()), 0) << packed.name;
  }
}

}  // namespace tandem::weights
