// What dense decoder families share of their layout: names, and the tensors around and inside their blocks. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "weights/layout.h"

namespace tandem::model::decoder {

// What the names of one block's tensors begin with.
struct LayerNames {
  explicit LayerNames(int64_t layer);
  std::string packed;  // "layers.3."
  std::string hf;      // "model.layers.3."
};

using HfTensors = std::vector<weights::Slice>;

// What a model's part (ModelConfig::shard) has of an HF tensor of `shape`, the part's own: the rows, or the columns, of
// its heads or of its share of the MLP, of which every part has as many.
weights::Slice rows_of_part(const ModelConfig& config, const std::string& hf_name, const std::vector<int64_t>& shape);
weights::Slice columns_of_part(const ModelConfig& config, const std::string& hf_name,
                               const std::vector<int64_t>& shape);

// A packed matrix of Hugging Face matrices that lie one below the other: normal values, decays.
weights::PackedTensor matrix(const std::string& packed_name, const HfTensors& slices);
// A norm's weight [width]: ones, does not decay.
weights::PackedTensor norm(const std::string& packed_name, const std::string& hf_name, int64_t width);
// A bias [rows] of Hugging Face biases that lie one below the other: zeros, does not decay.
weights::PackedTensor bias(const std::string& packed_name, const HfTensors& slices);

// qkv [(H + 2G)K, E] of self_attn.{q,k,v}_proj.weight
weights::PackedTensor qkv_matrix(const ModelConfig& config, const LayerNames& names);
// o [E, HK] of self_attn.o_proj.weight
weights::PackedTensor o_matrix(const ModelConfig& config, const LayerNames& names);
// post_norm [E], gate_up [2F, E], down [E, F]
void add_swiglu_mlp(const ModelConfig& config, const LayerNames& names, weights::Layout& layout);

// embed [V, E], the tensors that add_block() adds for each layer, final_norm [E], and head [V, E] unless it is tied.
weights::Layout layout(const ModelConfig& config,
                       void (*add_block)(const ModelConfig& config, const LayerNames& names, weights::Layout& layout));

}  // namespace tandem::model::decoder
