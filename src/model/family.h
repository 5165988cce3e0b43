// A family of decoders is a row of values (model/registry.cc) that says what its blocks are made of and which
// keys of config.json it reads. model/decoder computes by that row. No torch.
#pragma once

#include <cstdint>
#include <span>

namespace tandem::model {

// The MLP pieces that a block may have. A new one has a case wherever the compiler then asks for it: its tensors
// (decoder/layout.cc), its cost (decoder/cost.cc) and its forward and backward (decoder/block.cc).
enum class MlpKind : uint8_t {
  kSwiglu,
  kSparse,  // a router chooses a few of many experts, each of which is a kSwiglu (ModelConfig::experts)
};

// The scaled rotary embedding that a family computes beside the default one.
enum class RopeScaling : uint8_t { kNone, kLlama3 };

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

  bool qkv_bias = false;  // q, k and v have biases
  bool qk_norm = false;   // each head of q and k is normalised before the rotation
  MlpKind mlp = MlpKind::kSwiglu;

  bool needs_head_dim = false;  // without it a missing head_dim is hidden_size / num_attention_heads
  RopeScaling rope_scaling = RopeScaling::kNone;
  std::span<const FixedKey> fixed_keys;
};

}  // namespace tandem::model
