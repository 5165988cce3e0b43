#include "model/decoder/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/log.h"

namespace tandem::model::decoder {
namespace {

using base::Json;

// Bounds far above any published model, and low enough that no product of two of them leaves 64 bits. All of them
// together would: model/config.cc bounds a model's parameters.
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxMlp = int64_t{1} << 22;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxHeads = int64_t{1} << 14;
constexpr int64_t kMaxHeadDim = int64_t{1} << 12;
constexpr int64_t kMaxLayers = int64_t{1} << 12;
constexpr int64_t kMaxPositions = std::numeric_limits<int32_t>::max();  // positions are int32

// Published as torch_dtype (transformers 4) or dtype (transformers 5).
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

// Whether an object that describes the rotary embedding names the family's scaled form. UserError: it names another.
bool read_is_scaled(const ConfigReader& rope, const std::string& place, const ScaledRope& form) {
  bool is_scaled = false;
  for (const std::string key : {"rope_type", "type"}) {
    const std::string type = rope.string_or(key, "default");
    if (type == "default") continue;
    if (form.type.empty() || type != form.type) {
      const std::string known =
          form.type.empty() ? "scaled rotary embeddings are" : "another scaling than " + form.type + " is";
      rope.refuse(key, fmt::format("is {}: {} not supported; remove {} and keep sequences within "
                                   "max_position_embeddings",
                                   ConfigReader::shown(type), known, place));
    }
    is_scaled = true;
  }
  return is_scaled;
}

void refuse_unsupported_features(const ConfigReader& reader, int64_t num_layers) {
  const std::string activation = reader.string_or("hidden_act", "silu");
  if (activation != "silu") {
    reader.refuse("hidden_act", fmt::format("is {}; only \"silu\" is supported", ConfigReader::shown(activation)));
  }
  if (reader.number_or("attention_dropout", 0.0) != 0.0) {
    reader.refuse("attention_dropout", "is not 0; dropout is not supported, set it to 0");
  }
  if (reader.has("quantization_config")) {
    reader.refuse("quantization_config", "is set; quantised checkpoints are not supported, take the unquantised one");
  }
  if (const Json* types = reader.find("layer_types")) {
    const bool all_full =
        types->is_array() && static_cast<int64_t>(types->size()) == num_layers &&
        std::all_of(types->begin(), types->end(), [](const Json& type) { return type == "full_attention"; });
    if (!all_full) {
      reader.refuse("layer_types", fmt::format("must be \"full_attention\" for each of the {} layers; other kinds are "
                                               "not supported",
                                               num_layers));
    }
  }
}

}  // namespace

ModelConfig read_decoder(const ConfigReader& reader) {
  ModelConfig config;
  config.hidden = reader.required_int("hidden_size", 1, kMaxWidth);
  config.num_layers = reader.required_int("num_hidden_layers", 1, kMaxLayers);
  config.num_heads = reader.required_int("num_attention_heads", 1, kMaxHeads);
  config.num_kv_heads = reader.required_int("num_key_value_heads", 1, kMaxHeads);
  config.mlp = reader.required_int("intermediate_size", 1, kMaxMlp);
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
  config.tied_embeddings = reader.bool_or("tie_word_embeddings", false);  // transformers' default for these families
  config.dtype = read_dtype(reader);
  refuse_unsupported_features(reader, config.num_layers);
  return config;
}

namespace {

int64_t even_head_dim(const ConfigReader& reader, int64_t head_dim) {
  if (head_dim > kMaxHeadDim) {
    reader.refuse("head_dim", fmt::format("is {}; it must lie between 2 and {}", head_dim, kMaxHeadDim));
  }
  if (head_dim % 2 != 0) {
    reader.refuse("head_dim", fmt::format("is {}; rotary embeddings need an even number", head_dim));
  }
  return head_dim;
}

}  // namespace

int64_t read_head_dim(const ConfigReader& reader) {
  return even_head_dim(reader, reader.required_int("head_dim", 2, kMaxHeadDim));
}

int64_t read_head_dim_or_quotient(const ConfigReader& reader, const ModelConfig& config) {
  if (reader.has("head_dim")) return read_head_dim(reader);
  if (config.hidden % config.num_heads != 0) {
    reader.refuse("head_dim", fmt::format("is missing, and num_attention_heads {} does not divide hidden_size {}; add "
                                          "it, or correct one",
                                          config.num_heads, config.hidden));
  }
  return even_head_dim(reader, config.hidden / config.num_heads);
}

RopeKeys read_rope(const ConfigReader& reader, const ScaledRope& form) {
  RopeKeys keys;
  std::optional<double> theta;
  if (reader.has("rope_theta")) theta = reader.required_number("rope_theta");
  for (const std::string key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = reader.find(key);
    if (value == nullptr) continue;
    const ConfigReader rope(*value, reader.name() + ": " + key);
    const bool is_scaled = read_is_scaled(rope, key, form);
    if (is_scaled && keys.scaled) rope.refuse("rope_type", "is said by rope_scaling too; remove one of the two");
    if (is_scaled) keys.scaled = rope;
    if (rope.number_or("partial_rotary_factor", 1.0) != 1.0) {
      rope.refuse("partial_rotary_factor", "must be 1: partial rotation is not supported");
    }
    if (rope.has("rope_theta")) {
      const double inner = rope.required_number("rope_theta");
      if (theta && *theta != inner) {
        rope.refuse("rope_theta", fmt::format("is {} but rope_theta outside is {}; remove one", inner, *theta));
      }
      theta = inner;
    }
    for (const auto& [name, setting] : value->items()) {
      const bool is_known = name == "rope_type" || name == "type" || name == "rope_theta" ||
                            name == "partial_rotary_factor" ||
                            (is_scaled && std::find(form.keys.begin(), form.keys.end(), name) != form.keys.end());
      if (!is_known && !setting.is_null()) {
        rope.refuse(ConfigReader::shown(name),
                    is_scaled ? "is no key of " + form.type + ", the rotary embedding that rope_type names; remove it"
                              : "is not supported; only the default rotary embedding is");
      }
    }
  }
  if (!theta) reader.refuse("rope_theta", "is missing (and rope_parameters.rope_theta too); add one of the two");
  if (!(*theta >= 1.0) || !std::isfinite(*theta)) {
    reader.refuse("rope_theta", fmt::format("is {}; it must be a finite number of at least 1", *theta));
  }
  keys.theta = *theta;
  return keys;
}

double read_rope_theta(const ConfigReader& reader) { return read_rope(reader, {}).theta; }

void refuse_true(const ConfigReader& reader, const char* key, const char* what) {
  if (reader.bool_or(key, false)) reader.refuse(key, std::string("is true; ") + what);
}

}  // namespace tandem::model::decoder
