// The layout of a decoder, and the functions by which a piece of a block states its tensors. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/family.h"
#include "weights/layout.h"

namespace tandem::model::decoder {

// The beginnings of the names of one block's tensors.
struct LayerNames {
  explicit LayerNames(int64_t layer);
  std::string packed;  // "layers.3."
  std::string hf;      // "model.layers.3."
};

using HfTensors = std::vector<weights::Slice>;

// Returns a packed matrix of Hugging Face matrices that lie one below the other. It begins with normal values, and
// decays.
weights::PackedTensor matrix(const std::string& packed_name, const HfTensors& slices);
// Returns a norm's weight [width]. It begins with ones, or with zeros where the family adds 1 to it, and does not
// decay.
weights::PackedTensor norm(const Family& family, const std::string& packed_name, const std::string& hf_name,
                           int64_t width);
// Returns a bias [rows] of Hugging Face biases that lie one below the other. It begins with zeros, and does not decay.
weights::PackedTensor bias(const std::string& packed_name, const HfTensors& slices);

// Returns embed [V, E]; for each layer the tensors of its attention and of its MLP; final_norm [E]; and head [V, E]
// unless it is tied. Attention has input_norm [E], qkv [(H + 2G)K, E], qkv_bias [(H + 2G)K], q_norm and k_norm, [K] or
// [HK] and [GK], o [E, HK] and attention_output_norm [E], norms and bias as far as the family has them.
// MlpKind::kGated has post_norm [E], gate_up [2F, E], down [E, F] and mlp_output_norm [E], norms as far as the family
// has them. MlpKind::kSparse has post_norm [E], router [X, E], experts_gate_up [X 2F, E] and experts_down [X E, F], in
// which each expert has its gate_up, and its down, below that of the one before.
weights::Layout layout(const ModelConfig& config, const Family& family);

}  // namespace tandem::model::decoder
