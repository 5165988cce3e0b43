#include "model/peft.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "base/files.h"
#include "base/json.h"
#include "model/config_reader.h"

namespace tandem::model {

namespace {

using base::Json;

constexpr const char* kConfigFile = "adapter_config.json";
constexpr int64_t kMaxBytes = int64_t{1} << 20;
// No matrix has so many rows that a rank above this would be one (decoder/config.cc).
constexpr int64_t kMaxRank = int64_t{1} << 20;

// These keys of adapter_config.json are read, or their value changes nothing where no adapter is trained. Any other key
// that is set asks for something that is not computed: DoRA, ranks by module, trained biases.
constexpr auto kReadKeys = std::to_array<std::string_view>(
    {"peft_type", "task_type", "base_model_name_or_path", "r", "lora_alpha", "lora_dropout", "target_modules",
     "use_rslora", "bias", "inference_mode", "init_lora_weights", "megatron_core", "qalora_group_size", "peft_version",
     "revision", "auto_mapping", "modules_to_save", "ensure_weight_tying"});

void refuse_other_keys(const ConfigReader& reader) {
  for (const auto& [key, value] : reader.object().items()) {
    const bool is_set = !value.is_null() && value != false && !(value.is_structured() && value.empty());
    if (!is_set || std::ranges::find(kReadKeys, key) != kReadKeys.end()) continue;
    reader.refuse(ConfigReader::shown(key),
                  fmt::format("is {}, which Tandem does not compute; merge the adapter with PEFT and take the merged "
                              "model",
                              ConfigReader::shown(value)));
  }
}

// With these PEFT begins A and B in one way or another and keeps the base. With "pissa", "olora", "corda", "loftq" and
// "lora_ga" it changes the base, mostly by what A and B begin with, so A and B of the file are for a base that is in no
// file. It does so again where it loads "pissa", "olora" and "loftq", and "pissa_niter_N" does it otherwise each time.
constexpr const char* kInit = "init_lora_weights";
constexpr auto kInitsThatKeepTheBase = std::to_array<std::string_view>({"gaussian", "orthogonal", "eva", "mica"});

void refuse_changed_base(const ConfigReader& reader) {
  const Json* value = reader.find(kInit);
  if (value == nullptr || value->is_boolean()) return;
  std::string name = value->is_string() ? value->get<std::string>() : "";
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (std::ranges::find(kInitsThatKeepTheBase, name) != kInitsThatKeepTheBase.end()) return;
  // PEFT converts no "loftq": what its base lost by quantisation is in no adapter.
  const char* remedy = name == "loftq"
                           ? "save the changed base, name it in base_model_name_or_path and set this key to true"
                           : "save the adapter with PEFT's save_pretrained(..., "
                             "path_initial_model_for_weight_conversion=...), or set this key to true if "
                             "base_model_name_or_path names the changed base";
  reader.refuse(kInit, fmt::format("is {}, for which PEFT may change the weights of the base; {}",
                                   ConfigReader::shown(*value), remedy));
}

bool are_names(const Json& list) {
  return list.is_array() && std::ranges::all_of(list, [](const Json& name) { return name.is_string(); });
}

}  // namespace

bool is_adapter_directory(const std::string& directory) {
  return base::file_exists(fmt::format("{}/{}", directory, kConfigFile)) &&
         !base::file_exists(directory + "/config.json");
}

AdapterFile read_adapter_config(const std::string& directory) {
  const std::string path = fmt::format("{}/{}", directory, kConfigFile);
  return parse_adapter_config(base::read_file(path, kMaxBytes), path);
}

AdapterFile parse_adapter_config(const std::string& text, const std::string& name) {
  const Json json = base::parse_json(text, name);
  const ConfigReader reader(json, name);
  const std::string type = reader.string_or("peft_type", "LORA");
  if (type != "LORA") reader.refuse("peft_type", fmt::format("is {}; only LORA is read", ConfigReader::shown(type)));
  refuse_changed_base(reader);
  refuse_other_keys(reader);
  if (const std::string bias = reader.string_or("bias", "none"); bias != "none") {
    reader.refuse("bias", fmt::format("is {}; only \"none\" is read", ConfigReader::shown(bias)));
  }
  AdapterFile file;
  file.base = reader.string_or("base_model_name_or_path", "");
  if (file.base.empty()) reader.refuse("base_model_name_or_path", "is missing; name the directory of the base model");
  file.rank = reader.required_int("r", 1, kMaxRank);
  file.alpha = reader.required_number("lora_alpha");
  if (!(file.alpha > 0.0 && file.alpha < 1e9)) reader.refuse("lora_alpha", "must be a positive number");
  file.use_rslora = reader.bool_or("use_rslora", false);
  file.dropout = reader.number_or("lora_dropout", 0.0);
  if (!(file.dropout >= 0.0 && file.dropout < 1.0)) reader.refuse("lora_dropout", "must be at least 0 and below 1");
  const Json& targets = reader.required("target_modules");
  if (targets.is_string() && targets == kAllLinear) {
    file.target_modules = {kAllLinear};
  } else {
    if (!are_names(targets) || targets.empty()) {
      reader.refuse("target_modules", "must be \"all-linear\" or a list of names");
    }
    for (const Json& name : targets) file.target_modules.push_back(name.get<std::string>());
  }
  file.ensures_weight_tying = reader.bool_or("ensure_weight_tying", false);
  const auto saved = reader.object().find("modules_to_save");
  if (saved == reader.object().end() || saved->is_null()) return file;
  if (!are_names(*saved)) reader.refuse("modules_to_save", "must be a list of names");
  for (const Json& name : *saved) {
    // PEFT adds the second to the first where it ties them.
    std::string module = name == "model.embed_tokens" ? "embed_tokens" : name.get<std::string>();
    if (std::ranges::find(file.modules_to_save, module) == file.modules_to_save.end()) {
      file.modules_to_save.push_back(std::move(module));
    }
  }
  return file;
}

std::string adapter_config_text(const LoraConfig& lora, const std::string& base, bool ties_embeddings) {
  Json json = Json::object();
  json["peft_type"] = "LORA";
  json["task_type"] = "CAUSAL_LM";
  json["base_model_name_or_path"] = base;
  json["r"] = lora.rank;
  // PEFT declares a whole number, and takes any.
  const auto whole = static_cast<int64_t>(lora.alpha);
  if (static_cast<double>(whole) == lora.alpha) {
    json["lora_alpha"] = whole;
  } else {
    json["lora_alpha"] = lora.alpha;
  }
  json["lora_dropout"] = lora.dropout;
  if (lora.is_rank_stabilized) json["use_rslora"] = true;
  json["target_modules"] = lora.target_modules;
  if (!lora.saved_modules.empty()) json["modules_to_save"] = lora.saved_modules;
  if (ties_embeddings && lora.saves("embed_tokens")) json["ensure_weight_tying"] = true;
  json["bias"] = "none";
  json["fan_in_fan_out"] = false;
  json["inference_mode"] = true;
  return json.dump(2) + "\n";
}

}  // namespace tandem::model
