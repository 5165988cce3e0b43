// The parts of a model on tensor ranks, copied out of whole tensors that a test has.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "model/registry.h"
#include "weights/layout.h"
#include "weights/store.h"

namespace tandem::model {

// Of a whole packed tensor, or of its gradient, what lies in a part's.
inline at::Tensor part_of(const at::Tensor& tensor, const weights::PackedTensor& whole,
                          const weights::PackedTensor& part) {
  at::Tensor result = at::empty(part.shape, tensor.options());
  for (size_t i = 0; i < part.slices.size(); ++i) {
    const weights::Slice& slice = part.slices[i];
    at::Tensor box = tensor.narrow(0, whole.slices[i].row_begin, whole.slices[i].shape[0]);
    for (size_t dim = 0; dim < slice.shape.size(); ++dim)
      box = box.narrow(static_cast<int64_t>(dim), slice.hf_begin()[dim], slice.shape[dim]);
    result.narrow(0, slice.row_begin, slice.shape[0]).copy_(box);
  }
  return result;
}

// A store of the part that `part` configures, with a whole store's weights.
inline weights::WeightStore part_of_store(const weights::WeightStore& whole, const ModelConfig& part) {
  weights::WeightStore store(build_layout(part), whole.dtype());
  for (const weights::PackedTensor& packed : store.layout().tensors)
    store.tensor(packed.name).copy_(part_of(whole.tensor(packed.name), whole.layout().find(packed.name), packed));
  return store;
}

}  // namespace tandem::model
