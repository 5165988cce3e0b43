// Models that are spread over tensor ranks: their layouts, and whether a rank's store is its part of the whole.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "model/registry.h"
#include "tests/model/small_models.h"
#include "weights/store.h"

namespace tandem::weights {

// One layer that 2, 3 and 4 divide, and a vocabulary that they do not.
inline model::ModelConfig divisible_config(const std::string& architecture, bool tied) {
  model::ModelConfig config;
  config.hidden = 10;
  config.num_layers = 1;
  config.num_heads = 24;
  config.num_kv_heads = 12;
  config.head_dim = 2;
  config.mlp = 36;
  config.vocab = 71;
  config.tied_embeddings = tied;
  config.dtype = model::Dtype::kFloat32;
  return model::in_family(config, architecture);
}

inline std::vector<Layout> part_layouts(const model::ModelConfig& config, int num_ranks) {
  std::vector<Layout> layouts;
  for (int rank = 0; rank < num_ranks; ++rank) {
    layouts.push_back(model::build_layout(model::shard_of(config, {.rank = rank, .size = num_ranks})));
  }
  return layouts;
}

// The slice's box of its HF tensor, which the store of the whole model holds.
inline at::Tensor box_in(const WeightStore& whole, const PackedTensor& packed, const Slice& slice) {
  for (const Slice& other : whole.layout().find(packed.name).slices) {
    if (other.hf_name != slice.hf_name) continue;
    at::Tensor box = whole.slice(whole.layout().find(packed.name), other);
    for (size_t d = 0; d < slice.shape.size(); ++d)
      box = box.narrow(static_cast<int64_t>(d), slice.hf_begin()[d], slice.shape[d]);
    return box.contiguous();
  }
  ADD_FAILURE() << "no slice " << slice.hf_name;
  return {};
}

// Every weight, bit for bit.
inline void expect_part_of(const WeightStore& part, const WeightStore& whole) {
  EXPECT_EQ(part.info(), whole.info());
  int64_t elements = 0;
  for (const PackedTensor& packed : part.layout().tensors) {
    for (const Slice& slice : packed.slices) {
      const at::Tensor actual = part.slice(packed, slice).cpu(), expected = box_in(whole, packed, slice);
      ASSERT_EQ(actual.nbytes(), expected.nbytes()) << slice.hf_name;
      EXPECT_EQ(std::memcmp(actual.data_ptr(), expected.data_ptr(), actual.nbytes()), 0) << slice.hf_name;
      elements += actual.numel();
    }
  }
  EXPECT_EQ(elements, part.layout().num_elements());
}

}  // namespace tandem::weights
