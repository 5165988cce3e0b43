#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_set>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "model/registry.h"

namespace tandem::model {
namespace {

using base::Json;

// Bounds far above any published model, and low enough that no product of two of them leaves 64 bits. All of them
// together would: a model has at most kMaxParameters.
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxMlp = int64_t{1} << 22;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxHeads = int64_t{1} << 14;
constexpr int64_t kMaxHeadDim = int64_t{1} << 12;
constexpr int64_t kMaxLayers = int64_t{1} << 12;
constexpr int64_t kMaxPositions = std::numeric_limits<int32_t>::max();  // positions are int32
constexpr int64_t kMaxParameters = int64_t{1} << 44;                    // with their optimizer 256 TiB
constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

// One JSON object with typed, bounded access by key. Hugging Face writes null for "not set": null counts as absent.
class ConfigReader {
 public:
  ConfigReader(const Json& object, std::string name) : object_(object), name_(std::move(name)) {
    TANDEM_USER_CHECK(object_.is_object(), name_ + ": the file must hold one JSON object; take it from the model's",
                      "publisher again");
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& what_and_remedy) const {
    throw UserError(fmt::format("{}: {} {}", name_, key, what_and_remedy));
  }

  const Json* find(const std::string& key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool has(const std::string& key) const { return find(key) != nullptr; }

  const Json& required(const std::string& key) const {
    const Json* value = find(key);
    if (value == nullptr) refuse(key, "is missing; add it as the model's publisher has it");
    return *value;
  }

  int64_t required_int(const std::string& key, int64_t low, int64_t high) const {
    return as_int(key, required(key), low, high);
  }

  double required_number(const std::string& key) const { return as_number(key, required(key)); }

  double number_or(const std::string& key, double fallback) const {
    const Json* value = find(key);
    return value == nullptr ? fallback : as_number(key, *value);
  }

  bool bool_or(const std::string& key, bool fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) refuse(key, "must be true or false, not " + shown(*value));
    return value->get<bool>();
  }

  std::string string_or(const std::string& key, const std::string& fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) refuse(key, "must be a string, not " + shown(*value));
    return value->get<std::string>();
  }

  // One token id, a list of them, or nothing.
  std::vector<int32_t> token_ids(const std::string& key, int64_t vocab) const {
    std::vector<int32_t> ids;
    const Json* value = find(key);
    if (value == nullptr) return ids;
    if (!value->is_array()) return {as_token_id(key, *value, vocab)};
    for (const Json& id : *value) ids.push_back(as_token_id(key, id, vocab));
    return ids;
  }

  int32_t pad_token_id(int64_t vocab) const {
    const Json* value = find("pad_token_id");
    // Some published configurations write -1 for "none".
    if (value == nullptr || *value == -1) return -1;
    return as_token_id("pad_token_id", *value, vocab);
  }

  // A value as a message shows it: short, on one line.
  static std::string shown(const Json& value) {
    std::string text = value.dump(-1, ' ', true);
    if (text.size() > 60) text = text.substr(0, 60) + "...";
    return text;
  }

  const Json& object() const { return object_; }
  const std::string& name() const { return name_; }

 private:
  int64_t as_int(const std::string& key, const Json& value, int64_t low, int64_t high) const {
    if (!value.is_number_integer()) refuse(key, "must be a whole number, not " + shown(value));
    const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(high);
    const int64_t number = fits ? value.get<int64_t>() : 0;
    if (!fits || number < low || number > high) {
      refuse(key, fmt::format("is {}; it must lie between {} and {}", shown(value), low, high));
    }
    return number;
  }

  double as_number(const std::string& key, const Json& value) const {
    if (!value.is_number()) refuse(key, "must be a number, not " + shown(value));
    return value.get<double>();
  }

  int32_t as_token_id(const std::string& key, const Json& value, int64_t vocab) const {
    if (!value.is_number_integer()) refuse(key, "must be a token id or a list of them, not " + shown(value));
    return static_cast<int32_t>(as_int(key, value, 0, vocab - 1));
  }

  const Json& object_;
  std::string name_;
};

std::string read_architecture(const ConfigReader& reader) {
  const Json& names = reader.required("architectures");
  if (!names.is_array() || names.size() != 1 || !names[0].is_string()) {
    reader.refuse("architectures", "must be a list of one name, not " + ConfigReader::shown(names));
  }
  return names[0].get<std::string>();
}

void check_architecture(const ConfigReader& reader, const std::string& architecture) {
  if (find_architecture(architecture) != nullptr) return;
  const std::string supported = "Tandem trains " + supported_architectures();
  if (architecture == "Qwen3MoeForCausalLM") {
    reader.refuse("architectures", "names the sparse model Qwen3MoeForCausalLM, which is not supported yet; " +
                                       supported + ": take a dense checkpoint of that family");
  }
  reader.refuse("architectures",
                fmt::format("names {}, which is not supported; {}", ConfigReader::shown(architecture), supported));
}

// Published as rope_theta + rope_scaling (transformers 4), or as rope_parameters (transformers 5).
double read_rope_theta(const ConfigReader& reader) {
  std::optional<double> theta;
  if (reader.has("rope_theta")) theta = reader.required_number("rope_theta");
  for (const std::string key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = reader.find(key);
    if (value == nullptr) continue;
    const ConfigReader rope(*value, reader.name() + ": " + key);
    for (const std::string type_key : {"rope_type", "type"}) {
      const std::string type = rope.string_or(type_key, "default");
      if (type != "default") {
        rope.refuse(type_key, fmt::format("is {}: scaled rotary embeddings are not supported; remove {} and keep "
                                          "sequences within max_position_embeddings",
                                          ConfigReader::shown(type), key));
      }
    }
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
      const bool known =
          name == "rope_type" || name == "type" || name == "rope_theta" || name == "partial_rotary_factor";
      if (!known && !setting.is_null()) {
        rope.refuse(ConfigReader::shown(name), "is not supported; only the default rotary embedding is");
      }
    }
  }
  if (!theta) reader.refuse("rope_theta", "is missing (and rope_parameters.rope_theta too); add one of the two");
  if (!(*theta >= 1.0) || !std::isfinite(*theta)) {
    reader.refuse("rope_theta", fmt::format("is {}; it must be a finite number of at least 1", *theta));
  }
  return *theta;
}

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
  reader.refuse("dtype", fmt::format("is {}; supported are \"bfloat16\", \"float32\" and \"float16\"",
                                     ConfigReader::shown(name)));
}

void refuse_unsupported_features(const ConfigReader& reader, int64_t num_layers) {
  const std::string activation = reader.string_or("hidden_act", "silu");
  if (activation != "silu") {
    reader.refuse("hidden_act", fmt::format("is {}; only \"silu\" is supported", ConfigReader::shown(activation)));
  }
  if (reader.bool_or("attention_bias", false)) reader.refuse("attention_bias", "is true; biases are not supported");
  if (reader.number_or("attention_dropout", 0.0) != 0.0) {
    reader.refuse("attention_dropout", "is not 0; dropout is not supported, set it to 0");
  }
  if (reader.bool_or("use_sliding_window", false)) {
    reader.refuse("use_sliding_window", "is true; sliding-window attention is not supported");
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

void check_parameters(const ConfigReader& reader, const ModelConfig& config) {
  const int64_t parameters = config.num_parameters();
  if (parameters <= kMaxParameters) return;
  reader.refuse(
      "num_hidden_layers",
      fmt::format("{}, hidden_size {}, intermediate_size {}, vocab_size {}, num_attention_heads {} and head_dim "
                  "{} make a model of {} parameters, more than any machine holds ({}): correct the wrong one",
                  config.num_layers, config.hidden, config.mlp, config.vocab, config.num_heads, config.head_dim,
                  parameters, kMaxParameters));
}

void add_eos_ids(const std::vector<int32_t>& ids, ModelConfig& config) {
  std::unordered_set<int32_t> known(config.eos_token_ids.begin(), config.eos_token_ids.end());
  for (const int32_t id : ids) {
    if (known.insert(id).second) config.eos_token_ids.push_back(id);
  }
}

}  // namespace

int64_t dtype_bytes(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }

const char* to_string(Dtype dtype) { return dtype == Dtype::kFloat32 ? "float32" : "bfloat16"; }

int64_t ModelConfig::num_parameters() const { return build_layout(*this).num_elements(); }

ModelConfig parse_model_config(const std::string& json_text, const std::string& name) {
  const Json json = base::parse_json(json_text, name);
  const ConfigReader reader(json, name);
  ModelConfig config;
  config.architecture = read_architecture(reader);
  check_architecture(reader, config.architecture);
  config.hidden = reader.required_int("hidden_size", 1, kMaxWidth);
  config.num_layers = reader.required_int("num_hidden_layers", 1, kMaxLayers);
  config.num_heads = reader.required_int("num_attention_heads", 1, kMaxHeads);
  config.num_kv_heads = reader.required_int("num_key_value_heads", 1, kMaxHeads);
  config.head_dim = reader.required_int("head_dim", 2, kMaxHeadDim);
  config.mlp = reader.required_int("intermediate_size", 1, kMaxMlp);
  config.vocab = reader.required_int("vocab_size", 1, kMaxVocab);
  config.max_positions = reader.required_int("max_position_embeddings", 1, kMaxPositions);
  if (config.num_heads % config.num_kv_heads != 0) {
    reader.refuse("num_key_value_heads", fmt::format("is {}, which does not divide num_attention_heads {}; correct one",
                                                     config.num_kv_heads, config.num_heads));
  }
  if (config.head_dim % 2 != 0) {
    reader.refuse("head_dim", fmt::format("is {}; rotary embeddings need an even number", config.head_dim));
  }
  config.rope_theta = read_rope_theta(reader);
  config.rms_norm_eps = reader.required_number("rms_norm_eps");
  if (!(config.rms_norm_eps > 0.0 && config.rms_norm_eps < 1.0)) {
    reader.refuse("rms_norm_eps", fmt::format("is {}; it must lie between 0 and 1", config.rms_norm_eps));
  }
  config.initializer_range = reader.number_or("initializer_range", config.initializer_range);
  if (!(config.initializer_range >= 0.0 && config.initializer_range <= 1e3)) {
    reader.refuse("initializer_range", fmt::format("is {}; it must lie between 0 and 1000", config.initializer_range));
  }
  config.tied_embeddings = reader.bool_or("tie_word_embeddings", false);  // false: transformers' default for Qwen3
  config.dtype = read_dtype(reader);
  refuse_unsupported_features(reader, config.num_layers);
  check_parameters(reader, config);
  add_eos_ids(reader.token_ids("eos_token_id", config.vocab), config);
  config.pad_token_id = reader.pad_token_id(config.vocab);
  return config;
}

void add_generation_config(const std::string& json_text, const std::string& name, ModelConfig& config) {
  const Json json = base::parse_json(json_text, name);
  const ConfigReader reader(json, name);
  add_eos_ids(reader.token_ids("eos_token_id", config.vocab), config);
  if (config.pad_token_id < 0) config.pad_token_id = reader.pad_token_id(config.vocab);
}

ModelConfig read_model_config(const std::string& directory) {
  TANDEM_USER_CHECK(base::directory_exists(directory),
                    directory + ": no such directory; name a local Hugging Face model directory");
  const std::string path = directory + "/config.json";
  TANDEM_USER_CHECK(base::file_exists(path), path + ": no such file; a Hugging Face model directory has one");
  ModelConfig config = parse_model_config(base::read_file(path, kMaxConfigBytes), path);
  const std::string generation_path = directory + "/generation_config.json";
  if (base::file_exists(generation_path)) {
    add_generation_config(base::read_file(generation_path, kMaxConfigBytes), generation_path, config);
  }
  return config;
}

}  // namespace tandem::model
