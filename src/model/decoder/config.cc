#include "model/decoder/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/log.h"
#include "model/decoder/layer_attention.h"
#include "model/decoder/rope.h"

namespace tandem::model::decoder {
namespace {

using base::Json;

// These bounds are far above any published model, and low enough that no product of two of them leaves 64 bits. All of
// them together would: model/config.cc bounds a model's parameters.
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxMlp = int64_t{1} << 22;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxHeads = int64_t{1} << 14;
constexpr int64_t kMaxHeadDim = int64_t{1} << 12;
constexpr int64_t kMaxExperts = int64_t{1} << 12;
constexpr int64_t kMaxExpertsOfAllLayers = int64_t{1} << 17;  // each is three tensors of the layout
constexpr int64_t kMaxLayers = int64_t{1} << 12;
constexpr int64_t kMaxPositions = std::numeric_limits<int32_t>::max();  // positions are int32

// The key is torch_dtype in the form of transformers 4, and dtype in that of transformers 5.
Dtype read_dtype(const ConfigReader& reader) {
  std::string name = reader.string_or("dtype", "");
  const std::string older = reader.string_or("torch_dtype", name);
  if (name.empty()) name = older;
  if (name != older) {
    reader.refuse("dtype", fmt::format("is \"{}\" but torch_dtype is \"{}\"; remove the wrong one", name, older));
  }
  if (name == "float32") return Dtype::kFloat32;
  if (name == "bfloat16") return Dtype::kBFloat16;
  if (name == "float16") {
    // Every float16 is a float32; bfloat16 would drop three bits of each weight.
    base::log_info("{}: float16 weights are held as float32", reader.name());
    return Dtype::kFloat32;
  }
  if (name.empty()) reader.refuse("dtype", "is missing (and torch_dtype too); add \"bfloat16\" or \"float32\"");
  reader.refuse(
      reader.has("dtype") ? "dtype" : "torch_dtype",
      fmt::format("is {}; supported are \"bfloat16\", \"float32\" and \"float16\"", ConfigReader::shown(name)));
}

// Gemma's files say hidden_activation, and some hidden_act too, which transformers does not read.
void refuse_other_activations(const ConfigReader& reader, const Family& family) {
  const bool is_silu = family.activation == Activation::kSilu;
  const std::string key = is_silu ? "hidden_act" : "hidden_activation", known = is_silu ? "silu" : "gelu_pytorch_tanh";
  const std::string said = reader.string_or(key, known);
  if (said != known) {
    reader.refuse(key, fmt::format("is {}; only \"{}\" is supported", ConfigReader::shown(said), known));
  }
}

void refuse_unsupported_features(const ConfigReader& reader, const Family& family) {
  refuse_other_activations(reader, family);
  if (reader.number_or("attention_dropout", 0.0) != 0.0) {
    reader.refuse("attention_dropout", "is not 0; dropout is not supported, set it to 0");
  }
  for (const char* key : family.unset_keys) {
    if (reader.has(key)) reader.refuse(key, "is set, which is not supported; take a model without it");
  }
  for (const char* key : family.zero_keys) {
    if (reader.number_or(key, 0.0) != 0.0) reader.refuse(key, "is not 0, which is not supported; set it to 0");
  }
}

// Returns how the matrices of the checkpoint are stored. The keys are those of BitsAndBytesConfig.
device::Quantisation read_quantisation(const ConfigReader& reader) {
  const base::Json* const found = reader.find("quantization_config");
  if (found == nullptr) return device::Quantisation::kNone;
  const ConfigReader quantised(*found, reader.name() + ": quantization_config");
  constexpr const char* kOther = "take the checkpoint that it was made from";
  const auto demand = [&](const char* key, const std::string& value) {
    const std::string said = quantised.string_or(key, "");
    if (said != value) {
      quantised.refuse(
          key, fmt::format("is {}; only {} of bitsandbytes is read: {}", ConfigReader::shown(said), value, kOther));
    }
  };
  demand("quant_method", "bitsandbytes");
  if (quantised.bool_or("load_in_8bit", false)) return device::Quantisation::kInt8;
  if (!quantised.bool_or("load_in_4bit", false))
    quantised.refuse("load_in_4bit", std::string("is not set, nor is load_in_8bit; ") + kOther);
  demand("bnb_4bit_quant_type", "nf4");
  demand("bnb_4bit_quant_storage", "uint8");
  if (!quantised.bool_or("bnb_4bit_use_double_quant", false)) {
    quantised.refuse("bnb_4bit_use_double_quant", std::string("is not true, and NF4 is read with it alone; ") + kOther);
  }
  return device::Quantisation::kNf4;
}

// Returns an even number, which is hidden / heads where config.json may leave it out and does.
int64_t read_head_dim(const ConfigReader& reader, const Family& family, const ModelConfig& config) {
  const bool is_said = family.needs_head_dim || reader.has("head_dim");
  if (!is_said && config.hidden % config.num_heads != 0) {
    reader.refuse("head_dim", fmt::format("is missing, and num_attention_heads {} does not divide hidden_size {}; add "
                                          "it, or correct one",
                                          config.num_heads, config.hidden));
  }
  const int64_t head_dim = is_said ? reader.required_int("head_dim", 2, kMaxHeadDim) : config.hidden / config.num_heads;
  if (head_dim > kMaxHeadDim) {
    reader.refuse("head_dim", fmt::format("is {}; it must lie between 2 and {}", head_dim, kMaxHeadDim));
  }
  if (head_dim % 2 != 0) {
    reader.refuse("head_dim", fmt::format("is {}; rotary embeddings need an even number", head_dim));
  }
  return head_dim;
}

// The key is num_experts in the form of transformers 4, and num_local_experts in that of transformers 5.
int64_t read_num_experts(const ConfigReader& reader) {
  constexpr const char *kKey = "num_experts", *kNewer = "num_local_experts";
  if (!reader.has(kKey)) return reader.required_int(reader.has(kNewer) ? kNewer : kKey, 1, kMaxExperts);
  const int64_t count = reader.required_int(kKey, 1, kMaxExperts);
  if (reader.has(kNewer) && reader.required_int(kNewer, 1, kMaxExperts) != count) {
    reader.refuse(kKey, fmt::format("is {} but {} is {}; remove the wrong one", count, kNewer,
                                    reader.required_int(kNewer, 1, kMaxExperts)));
  }
  return count;
}

// Every layer is sparse: published models have no other, and the keys that could say so are held to that.
ExpertsConfig read_experts(const ConfigReader& reader, int64_t num_layers) {
  ExpertsConfig experts;
  experts.count = read_num_experts(reader);
  if (experts.count * num_layers > kMaxExpertsOfAllLayers) {
    reader.refuse("num_experts", fmt::format("is {} in each of {} layers; a model may have {} experts", experts.count,
                                             num_layers, kMaxExpertsOfAllLayers));
  }
  experts.chosen = reader.required_int("num_experts_per_tok", 1, experts.count);
  experts.width = reader.required_int("moe_intermediate_size", 1, kMaxMlp);
  experts.normalises = reader.bool_or("norm_topk_prob", false);  // transformers' default; the published models say true
  constexpr const char *kStep = "decoder_sparse_step", *kDense = "mlp_only_layers";
  if (reader.has(kStep) && reader.required_int(kStep, 0, kMaxLayers) != 1)
    reader.refuse(kStep, "is not 1; layers without experts are not supported");
  if (const Json* dense = reader.find(kDense); dense != nullptr && (!dense->is_array() || !dense->empty()))
    reader.refuse(kDense, "must be an empty list; layers without experts are not supported");
  return experts;
}

}  // namespace

ModelConfig read_config(const ConfigReader& reader, const Family& family) {
  ModelConfig config;
  config.hidden = reader.required_int("hidden_size", 1, kMaxWidth);
  config.num_layers = reader.required_int("num_hidden_layers", 1, kMaxLayers);
  config.num_heads = reader.required_int("num_attention_heads", 1, kMaxHeads);
  config.num_kv_heads = reader.required_int("num_key_value_heads", 1, kMaxHeads);
  config.mlp = reader.required_int("intermediate_size", 1, kMaxMlp);
  if (family.mlp == MlpKind::kSparse) config.experts = read_experts(reader, config.num_layers);
  config.vocab = reader.required_int("vocab_size", 1, kMaxVocab);
  config.max_positions = reader.required_int("max_position_embeddings", 1, kMaxPositions);
  if (config.num_heads % config.num_kv_heads != 0) {
    reader.refuse("num_key_value_heads", fmt::format("is {}, which does not divide num_attention_heads {}; correct one",
                                                     config.num_kv_heads, config.num_heads));
  }
  config.rms_norm_eps = reader.required_number("rms_norm_eps");
  if (!(config.rms_norm_eps > 0.0 && config.rms_norm_eps < 1.0)) {
    reader.refuse("rms_norm_eps", fmt::format("is {}; it must lie between 0 and 1", config.rms_norm_eps));
  }
  config.initializer_range = reader.number_or("initializer_range", config.initializer_range);
  if (!(config.initializer_range >= 0.0 && config.initializer_range <= 1e3)) {
    reader.refuse("initializer_range", fmt::format("is {}; it must lie between 0 and 1000", config.initializer_range));
  }
  config.tied_embeddings = reader.bool_or("tie_word_embeddings", family.ties_embeddings);
  config.dtype = read_dtype(reader);
  refuse_unsupported_features(reader, family);
  config.file_quantisation = read_quantisation(reader);
  config.head_dim = read_head_dim(reader, family, config);
  const Rope rope = read_rope(reader, family, config.head_dim);
  config.rotary_dims = rope.rotary_dims;
  config.attention = read_attention(reader, family, config, rope);
  config.attention_bias = family.reads_attention_bias && reader.bool_or("attention_bias", true);
  for (const FixedKey& fixed : family.fixed_keys) {
    if (reader.bool_or(fixed.key, fixed.value) != fixed.value) {
      reader.refuse(fixed.key, fmt::format("is {}; {}", !fixed.value, fixed.refusal));
    }
  }
  return config;
}

}  // namespace tandem::model::decoder
