#include "model/config.h"

#include <fmt/format.h>

#include <cmath>
#include <unordered_set>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "model/config_reader.h"
#include "model/decoder/config.h"
#include "model/registry.h"

namespace tandem::model {
namespace {

using base::Json;

constexpr int64_t kMaxParameters = int64_t{1} << 44;  // with their optimizer 256 TiB

std::string read_architecture(const ConfigReader& reader) {
  const Json& names = reader.required("architectures");
  if (!names.is_array() || names.size() != 1 || !names[0].is_string()) {
    reader.refuse("architectures", "must be a list of one name, not " + ConfigReader::shown(names));
  }
  return names[0].get<std::string>();
}

void check_parameters(const ConfigReader& reader, const ModelConfig& config) {
  const int64_t parameters = config.num_parameters();
  if (parameters <= kMaxParameters) return;
  const std::string experts = config.experts ? fmt::format(", {} experts of moe_intermediate_size {}",
                                                           config.experts->count, config.experts->width)
                                             : "";
  reader.refuse(
      "num_hidden_layers",
      fmt::format("{}, hidden_size {}, intermediate_size {}, vocab_size {}, num_attention_heads {} and head_dim "
                  "{}{} make a model of {} parameters, more than any machine holds ({}): correct the wrong one",
                  config.num_layers, config.hidden, config.mlp, config.vocab, config.num_heads, config.head_dim,
                  experts, parameters, kMaxParameters));
}

void add_eos_ids(const std::vector<int32_t>& ids, ModelConfig& config) {
  std::unordered_set<int32_t> known(config.eos_token_ids.begin(), config.eos_token_ids.end());
  for (const int32_t id : ids) {
    if (known.insert(id).second) config.eos_token_ids.push_back(id);
  }
}

}  // namespace

int64_t dtype_bytes(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }

const char* to_string(device::Quantisation quantisation) {
  switch (quantisation) {
    case device::Quantisation::kNf4: return "nf4";
    case device::Quantisation::kInt8: return "int8";
    case device::Quantisation::kNone: break;
  }
  return "none";
}

const char* to_string(Dtype dtype) { return dtype == Dtype::kFloat32 ? "float32" : "bfloat16"; }

double LoraConfig::scale() const {
  const auto parts = static_cast<double>(rank);
  return alpha / (is_rank_stabilized ? std::sqrt(parts) : parts);
}

int64_t ModelConfig::num_parameters() const { return build_layout(whole_of(*this)).num_elements(); }

ModelConfig shard_of(const ModelConfig& whole, const TensorShard& shard) {
  TANDEM_CHECK(whole.shard.is_whole(), "a part of a part");
  if (shard.is_whole()) return whole;
  const auto divided = [&](int64_t number, const char* what) {
    TANDEM_USER_CHECK(number % shard.size == 0,
                      fmt::format("--tensor-model-parallel-size {}: does not divide the model's {} {}; give a number "
                                  "that divides its heads ({}), its key-value heads ({}) and its {} ({})",
                                  shard.size, number, what, whole.num_heads, whole.num_kv_heads,
                                  whole.experts ? "experts' width" : "MLP's width", whole.mlp_width()));
    return number / shard.size;
  };
  TANDEM_USER_CHECK(family_of(whole).can_be_sharded(),
                    fmt::format("--tensor-model-parallel-size {}: {} is not spread over devices in this version; leave "
                                "the flag out",
                                shard.size, whole.architecture));
  TANDEM_USER_CHECK(!whole.lora,
                    fmt::format("--tensor-model-parallel-size {} with an adapter: adapters are not spread over devices "
                                "in this version; leave one of the two out",
                                shard.size));
  TANDEM_USER_CHECK(whole.vocab >= shard.size,
                    fmt::format("--tensor-model-parallel-size {}: the model has a vocabulary "
                                "of {} tokens; give a smaller number",
                                shard.size, whole.vocab));
  ModelConfig part = whole;
  part.num_heads = divided(whole.num_heads, "heads");
  part.num_kv_heads = divided(whole.num_kv_heads, "key-value heads");
  part.mlp_width() = divided(whole.mlp_width(), whole.experts ? "columns of an expert" : "columns of the MLP");
  part.shard = shard;
  return part;
}

ModelConfig whole_of(const ModelConfig& part) {
  ModelConfig whole = part;
  whole.num_heads *= part.shard.size;
  whole.num_kv_heads *= part.shard.size;
  whole.mlp_width() *= part.shard.size;
  whole.shard = {};
  return whole;
}

VocabRows vocab_rows(const ModelConfig& part) {
  // A part is whole tiles of the kernels' products, where there are so many.
  constexpr int64_t kTile = 64;
  const int64_t unit = part.vocab >= kTile * part.shard.size ? kTile : 1;
  const auto begin_of = [&](int rank) {
    return rank == part.shard.size ? part.vocab : part.vocab / unit * rank / part.shard.size * unit;
  };
  return {.begin = begin_of(part.shard.rank), .end = begin_of(part.shard.rank + 1)};
}

std::vector<int64_t> vocab_row_counts(const ModelConfig& part) {
  std::vector<int64_t> counts;
  for (int rank = 0; rank < part.shard.size; ++rank) {
    ModelConfig other = part;
    other.shard.rank = rank;
    counts.push_back(vocab_rows(other).count());
  }
  return counts;
}

ModelConfig parse_model_config(const std::string& json_text, const std::string& name) {
  const Json json = base::parse_json(json_text, name);
  const ConfigReader reader(json, name);
  const std::string architecture = read_architecture(reader);
  const Family* family = find_family(architecture);
  if (family == nullptr) reader.refuse("architectures", refusal_of(architecture));
  ModelConfig config = decoder::read_config(reader, *family);
  config.architecture = architecture;
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
  base::check_directory(directory, directory, "name a local Hugging Face model directory");
  const std::string path = directory + "/config.json";
  const std::string exported = directory + "/hf/latest";
  TANDEM_USER_CHECK(base::file_exists(path),
                    path + ": no such file; " +
                        (base::directory_exists(exported) ? "this is a run, whose newest weights are in " + exported
                                                          : "a Hugging Face model directory has one"));
  ModelConfig config = parse_model_config(base::read_file(path, kMaxConfigBytes), path);
  const std::string generation_path = directory + "/generation_config.json";
  if (base::file_exists(generation_path)) {
    add_generation_config(base::read_file(generation_path, kMaxConfigBytes), generation_path, config);
  }
  return config;
}

}  // namespace tandem::model
