// A model's shape, read from a Hugging Face config.json. Plans, layouts and tests use it, so it needs no torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/quantisation.h"

namespace tandem::model {

enum class Dtype : uint8_t { kFloat32, kBFloat16 };
int64_t dtype_bytes(Dtype dtype);
const char* to_string(Dtype dtype);                        // "float32", "bfloat16"
const char* to_string(device::Quantisation quantisation);  // "nf4", "int8"; kNone: "none"

// An adapter of low rank for matrices that are frozen (LoRA, Hu et al. 2021). A matrix W [N, K] then computes
//   W x + scale B A x    with A [rank, K], B [N, rank], and scale = alpha / rank
struct LoraConfig {
  int64_t rank = 0;
  double alpha = 0.0;
  std::vector<std::string> target_modules;  // whose matrices have one: "q_proj", ... in the model's order
  // The scale is alpha / sqrt(rank), which does not fall as the rank grows (rsLoRA, Kalajdzievski 2023).
  bool is_rank_stabilized = false;
  // Modules that are trained whole, next to the adapter: "embed_tokens", ... in the model's order.
  std::vector<std::string> saved_modules = {};
  // In the trainer's forward of a step A reads its input with this share of elements dropped, in [0, 1).
  double dropout = 0.0;

  double scale() const;
  bool saves(const std::string& module) const {
    return std::ranges::find(saved_modules, module) != saved_modules.end();
  }
};

// The experts of each layer of a sparse model. An expert is an MLP of that width.
struct ExpertsConfig {
  int64_t count = 0;              // X
  int64_t chosen = 0;             // C, the experts of a token: 1..X
  int64_t width = 0;              // F
  bool normalises = false;        // the weights of a token's experts add up to 1
  bool router_is_frozen = false;  // the routers' weights are not trained, though the others are
  bool operator==(const ExpertsConfig&) const = default;
};

// One rank of a tensor-parallel group, each of which holds a part of each matrix.
struct TensorShard {
  int rank = 0, size = 1;
  // With sequence parallelism each of several ranks keeps its own rows of the residual stream alone
  // (model/residual_stream.h).
  bool sequence_parallel = false;
  bool is_whole() const { return size == 1; }
  bool cuts_rows() const { return sequence_parallel && !is_whole(); }
  bool operator==(const TensorShard&) const = default;
};

// Holds the settings by which a layer's attention depends on positions: rotation, scale and window.
struct LayerAttention {
  double rope_theta = 10000.0;
  std::vector<float> rope_factors = {};  // [K/2], what each rotary frequency is multiplied by (device::Ops); empty: 1
  double query_scale = 1.0;              // what q is multiplied by after the rotation
  int64_t window = 0;                    // how many tokens a token sees, itself included; 0: all before it
  bool operator==(const LayerAttention&) const = default;
};

// A config.json, and what stands beside it, has at most this many bytes.
constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

struct ModelConfig {
  std::string architecture;                   // "Qwen3ForCausalLM"
  int64_t hidden = 0;                         // E
  int64_t num_layers = 0;                     // L
  int64_t num_heads = 0;                      // H
  int64_t num_kv_heads = 0;                   // G, divides H
  int64_t head_dim = 0;                       // K
  int64_t mlp = 0;                            // F of a dense MLP; no layer of a sparse model has one
  std::optional<ExpertsConfig> experts = {};  // of a sparse model
  int64_t vocab = 0;                          // V
  int64_t max_positions = 0;                  // context limit in tokens: max_position_embeddings of config.json
  // The attention of each layer, from the first on; after the last entry the first comes again. At least one.
  std::vector<LayerAttention> attention = {LayerAttention{}};
  int64_t rotary_dims = 0;      // how many dims of a head are rotated, of those first; 0: all K
  bool attention_bias = false;  // q, k and v have biases, in a family whose configuration may say so
  double rms_norm_eps = 1e-6;
  bool tied_embeddings = false;
  double initializer_range = 0.02;
  Dtype dtype = Dtype::kBFloat16;      // of the checkpoint
  std::vector<int32_t> eos_token_ids;  // config.json and generation_config.json together
  int32_t pad_token_id = -1;           // -1: none
  // How the matrices that can have an adapter are stored in the checkpoint's files, and how the model holds them. Where
  // it holds them quantised, dtype is bfloat16: all that is computed, and all other weights, are of that dtype.
  device::Quantisation file_quantisation = device::Quantisation::kNone;
  device::Quantisation quantisation = device::Quantisation::kNone;
  // The adapter that is trained in the place of the weights. Where it is unset, the weights are trained.
  std::optional<LoraConfig> lora = {};

  // The part of a model that this is. Heads, kv heads and F are those of the part; E, K and V are the model's.
  TensorShard shard = {};

  int64_t num_parameters() const;  // of the whole model, without an adapter
  bool is_quantised() const { return quantisation != device::Quantisation::kNone; }
  // Returns the name of --dtype: "bfloat16", or "nf4" for a model with such matrices.
  const char* dtype_name() const { return is_quantised() ? to_string(quantisation) : to_string(dtype); }
  const LayerAttention& attention_of(int64_t layer) const {
    return attention[static_cast<size_t>(layer) % attention.size()];
  }
  int64_t rotated_dims() const { return rotary_dims > 0 ? rotary_dims : head_dim; }
  // Returns whether a layer multiplies q by another number than 1.
  bool scales_queries() const {
    return std::ranges::any_of(attention, [](const LayerAttention& layer) { return layer.query_scale != 1.0; });
  }
  // Returns the width of the MLP that a token meets in a layer: F.
  int64_t mlp_width() const { return experts ? experts->width : mlp; }
  int64_t& mlp_width() { return experts ? experts->width : mlp; }
};

// Returns the part of a whole model that one of t tensor ranks computes with: 1/t of heads, kv heads and F, also of
// each expert's. Throws UserError, with the number, where t does not divide one of them, and where the model has an
// adapter.
ModelConfig shard_of(const ModelConfig& whole, const TensorShard& shard);
// Returns the whole model that `part` is a part of.
ModelConfig whole_of(const ModelConfig& part);

// The rows [begin, end) of embedding and head that a part has: at least one.
struct VocabRows {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};
VocabRows vocab_rows(const ModelConfig& part);
// Returns how many of these rows each rank has, by rank.
std::vector<int64_t> vocab_row_counts(const ModelConfig& part);

// Parses DIR/config.json (both spellings: rope_theta + torch_dtype, and rope_parameters + dtype) and the EOS
// ids of DIR/generation_config.json where it exists. UserError names file, key and remedy for anything missing,
// of the wrong type, out of range, unsupported by the family (another activation, a RoPE scaling that it does not
// have) or unknown (architecture).
ModelConfig read_model_config(const std::string& directory);

// Parses the text of config.json; `name` stands for the file in messages.
ModelConfig parse_model_config(const std::string& json_text, const std::string& name);

// Adds the EOS and padding ids of generation_config.json's text.
void add_generation_config(const std::string& json_text, const std::string& name, ModelConfig& config);

}  // namespace tandem::model
