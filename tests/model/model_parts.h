// Models that are spread over tensor ranks: their layouts, the parts of whole tensors, and whether a rank's store is
// its part of the whole.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "model/registry.h"
#include "tests/model/small_models.h"
#include "weights/layout.h"
#include "weights/store.h"

namespace tandem::model {

// Has one layer, whose widths 2, 3 and 4 divide, and a vocabulary that they do not divide.
inline ModelConfig divisible_config(const std::string& architecture, bool tied) {
  ModelConfig config;
  config.hidden = 10;
  config.num_layers = 1;
  config.num_heads = 24;
  config.num_kv_heads = 12;
  config.head_dim = 2;
  config.mlp = 36;
  config.vocab = 71;
  config.tied_embeddings = tied;
  config.dtype = Dtype::kFloat32;
  return in_family(config, architecture);
}

inline std::vector<weights::Layout> part_layouts(const ModelConfig& config, int num_ranks) {
  std::vector<weights::Layout> layouts;
  for (int rank = 0; rank < num_ranks; ++rank)
    layouts.push_back(build_layout(shard_of(config, {.rank = rank, .size = num_ranks})));
  return layouts;
}

// Returns the box of a whole packed tensor, or of its gradient, that a part's slice has.
inline at::Tensor box_of(const at::Tensor& tensor, const weights::PackedTensor& whole, const weights::Slice& slice) {
  for (const weights::Slice& other : whole.slices) {
    if (other.hf_name != slice.hf_name) continue;
    at::Tensor box = tensor.narrow(0, other.row_begin, other.shape[0]);
    for (size_t dim = 0; dim < slice.shape.size(); ++dim)
      box = box.narrow(static_cast<int64_t>(dim), slice.hf_begin()[dim], slice.shape[dim]);
    return box;
  }
  ADD_FAILURE() << "no slice " << slice.hf_name;
  return {};
}

// Returns the boxes of all slices of a part's tensor, one below the other.
inline at::Tensor part_of(const at::Tensor& tensor, const weights::PackedTensor& whole,
                          const weights::PackedTensor& part) {
  at::Tensor result = at::empty(part.shape, tensor.options());
  for (const weights::Slice& slice : part.slices)
    result.narrow(0, slice.row_begin, slice.shape[0]).copy_(box_of(tensor, whole, slice));
  return result;
}

// Makes a store of the part that `part` configures, with a whole store's weights.
inline weights::WeightStore part_of_store(const weights::WeightStore& whole, const ModelConfig& part) {
  weights::WeightStore store(build_layout(part), whole.dtype());
  for (const weights::PackedTensor& packed : store.layout().tensors)
    store.tensor(packed.name).copy_(part_of(whole.tensor(packed.name), whole.layout().find(packed.name), packed));
  return store;
}

// Expects every weight of a part to be the whole one's, bit for bit.
inline void expect_part_of(const weights::WeightStore& part, const weights::WeightStore& whole) {
  EXPECT_EQ(part.info(), whole.info());
  int64_t elements = 0;
  for (const weights::PackedTensor& packed : part.layout().tensors) {
    const weights::PackedTensor& packed_whole = whole.layout().find(packed.name);
    for (const weights::Slice& slice : packed.slices) {
      const at::Tensor actual = part.slice(packed, slice).cpu();
      const at::Tensor expected = box_of(whole.tensor(packed.name), packed_whole, slice).cpu().contiguous();
      ASSERT_EQ(actual.nbytes(), expected.nbytes()) << slice.hf_name;
      EXPECT_EQ(std::memcmp(actual.data_ptr(), expected.data_ptr(), actual.nbytes()), 0) << slice.hf_name;
      elements += actual.numel();
    }
  }
  EXPECT_EQ(elements, part.layout().num_elements());
}

}  // namespace tandem::model
