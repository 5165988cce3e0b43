// The layout is a table, as data, that maps each Hugging Face tensor to its place in the packed store. Loading,
// resharding, export, IPC and broadcast read this one table; names, shapes and dtypes never come from live storage. No
// torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/quantisation.h"

namespace tandem::weights {

// Rows [row_begin, row_begin + shape[0]) of a packed tensor are the HF tensor `hf_name`, or a box of it if the model is
// spread over tensor ranks. A vector has one "row" per element.
struct Slice {
  std::string hf_name;         // "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // shape of this slice: [rows, cols] or [rows]
  int64_t row_begin = 0;
  // The box begins at `begin` of an HF tensor of `whole_shape`. Both are empty if the slice is the whole tensor.
  std::vector<int64_t> begin = {}, whole_shape = {};
  // A model's file may have the values under this name too, and an adapter's has them: a head that is tied to an
  // embedding. Where a file is read, they must be the same. "": there is no such name.
  std::string twin = "";

  bool is_whole() const { return whole_shape.empty(); }
  const std::vector<int64_t>& hf_shape() const { return is_whole() ? shape : whole_shape; }
  std::vector<int64_t> hf_begin() const { return is_whole() ? std::vector<int64_t>(shape.size(), 0) : begin; }
};

// Selects the initial values of a tensor of random weights (initialize_random): N(0, initializer_range), constants, or
// uniform between -1 / sqrt(columns) and 1 / sqrt(columns), which is torch's kaiming_uniform_(a = sqrt(5)).
enum class Init : uint8_t { kNormal, kOnes, kZeros, kUniform };

// A packed tensor has the shape that kernels use: qkv [(H + 2G)K, E], gate_up [2F, E], ...
struct PackedTensor {
  std::string name;            // "layers.0.qkv"
  std::vector<int64_t> shape;  // rows = sum of the slices' rows
  std::vector<Slice> slices;   // ascending, gapless
  Init init = Init::kNormal;
  bool takes_adapter = false;  // its slices are modules that can have a LoRA adapter (model/lora.h)
  bool is_frozen = false;      // it keeps its values while the other tensors are trained: no gradient, no update
  // If it is not kNone, the store holds a quantised matrix (device/quantised_matrix.h) in place of elements of its own
  // dtype, with a part for each slice. Only a frozen matrix that is whole on each rank is held so.
  device::Quantisation quantisation = device::Quantisation::kNone;
  bool decays = true;  // weight decay applies to it: true for embeddings and projections, false for norms and biases
  int64_t num_elements() const;
  bool is_quantised() const { return quantisation != device::Quantisation::kNone; }
  // Returns the parts of a quantised tensor, one for each slice.
  std::vector<device::QuantisedPart> quantised_parts() const;
  // Returns whether each rank has all of it, if the model is spread over tensor ranks.
  bool is_whole() const;
};

struct Layout {
  std::vector<PackedTensor> tensors;  // in store order
  // HF names that may be present and are not loaded: the twin of an embedding, lm_head.weight.
  std::vector<std::string> ignored;
  int64_t num_elements() const;
  // Returns the quantisation of those that are quantised, which is one; kNone if none is.
  device::Quantisation quantisation() const;
  const PackedTensor& find(const std::string& name) const;  // throws BugError if absent
};

}  // namespace tandem::weights
