// A family of decoders is a row of values (model/registry.cc) that says what its blocks are made of and which
// keys of config.json it reads. model/decoder computes by that row. No torch.
#pragma once

#include <cstdint>
#include <span>

namespace tandem::model {

// The MLP pieces that a block may have. A new one has a case wherever the compiler then asks for it: its tensors
// (decoder/layout.cc), its cost (decoder/cost.cc) and its forward and backward (decoder/block.cc).
enum class MlpKind : uint8_t {
  kGated,   // down(activation(gate) * up)
  kSparse,  // a router chooses a few of many experts, each of which is a kGated (ModelConfig::experts)
};

// The activation of a kGated MLP: SiLU, or GELU in its tanh form.
enum class Activation : uint8_t { kSilu, kGelu };

// Selects the numbers over which q and k are normalised before the rotation.
enum class QkNorm : uint8_t {
  kNone,
  kHead,   // each head, by a weight [K] of all heads
  kWhole,  // all heads of a token together, by a weight [HK] of q and one [GK] of k
};

// Which two dims of a head turn together.
enum class RotaryPairs : uint8_t {
  kHalves,      // i and i + half of the rotated dims
  kNeighbours,  // 2 i and 2 i + 1
};

// The norms of a block, by their names in the checkpoint. Null: the block does not have that norm. What attention, or
// the MLP, reads is normalised by its `input`; what it gives is normalised by its `output` and then added to the
// residual stream.
struct BlockNorms {
  const char* attention_input = "input_layernorm";
  const char* attention_output = nullptr;
  const char* mlp_input = "post_attention_layernorm";
  const char* mlp_output = nullptr;
};

// Which layers do not rotate queries and keys.
enum class UnrotatedLayers : uint8_t {
  kNone,
  kListed,  // those with a 0 in no_rope_layers, or every no_rope_layer_interval-th
};

// Selects the rotary embedding of the layers that have a window.
enum class WindowRope : uint8_t {
  kSame,      // that of the other layers
  kUnscaled,  // the same, but not scaled
  kOwn,       // it has a base of its own and is not scaled
};

// Which layers have a sliding window (LayerAttention::window), where config.json has a number in sliding_window.
enum class WindowedLayers : uint8_t {
  kNone,   // the family has none; config.json may say that in other keys too (Family::fixed_keys)
  kAll,    // all layers
  kTyped,  // those that layer_types calls sliding_attention
};

// A key of config.json that is true or false, of which the family computes one value alone. A missing key has it.
struct FixedKey {
  const char* key;
  bool value;
  const char* refusal;  // what a message says about the other value
};

struct Family {
  const char* architecture;  // the name that config.json gives the model: "Qwen3ForCausalLM"
  // The architecture of the family's sparse models, if they are refused with the advice to take a dense one; or null.
  const char* sparse_architecture = nullptr;

  bool qkv_bias = false;              // q, k and v have biases
  bool reads_attention_bias = false;  // they have biases where attention_bias says true (ModelConfig)
  QkNorm qk_norm = QkNorm::kNone;
  BlockNorms norms = {};
  double norm_offset = 0.0;  // what is added to the weights of all norms (device::Norm)
  MlpKind mlp = MlpKind::kGated;
  Activation activation = Activation::kSilu;
  bool scales_embeddings = false;  // the embedding of a token is multiplied by sqrt(E), rounded to the weights' dtype
  // Attention divides by the root of query_pre_attn_scalar in place of that of K.
  bool reads_query_scalar = false;

  // The checkpoint has q, k and v, or gate and up, in one matrix.
  bool fuses_qkv = false, fuses_gate_up = false;

  bool needs_head_dim = false;   // without it a missing head_dim is hidden_size / num_attention_heads
  bool ties_embeddings = false;  // what a missing tie_word_embeddings means
  // The scaled forms of the rotary embedding mean what decoder/rope_scaling.h says. False: they mean something else.
  bool scales_rope = true;
  RotaryPairs rotary_pairs = RotaryPairs::kHalves;
  // A config.json without partial_rotary_factor has this one. 0: the whole head is rotated, and another factor is
  // refused.
  double rotary_factor = 0.0;
  UnrotatedLayers unrotated = UnrotatedLayers::kNone;
  WindowedLayers windowed = WindowedLayers::kNone;
  // With kTyped, and without layer_types, every so many layers one has no window; 0: all have it.
  int64_t unwindowed_interval = 0;
  bool reads_window_pattern = false;  // sliding_window_pattern stands for unwindowed_interval
  WindowRope window_rope = WindowRope::kSame;
  bool needs_window_key = false;  // a missing sliding_window would mean a number: it is asked for, if only as null
  std::span<const FixedKey> fixed_keys = {};
  std::span<const char* const> zero_keys = {};   // keys of which 0 alone is computed, which a missing key means
  std::span<const char* const> unset_keys = {};  // keys that must be missing or null

  // Whether tensor ranks can share a model: no packed matrix is cut by more than the rows that its names have.
  bool can_be_sharded() const {
    return !fuses_qkv && !fuses_gate_up && qk_norm != QkNorm::kWhole && norms.attention_input != nullptr &&
           norms.attention_output == nullptr && norms.mlp_input != nullptr && norms.mlp_output == nullptr &&
           !scales_embeddings;
  }
};

}  // namespace tandem::model
