// Writes reward models whose decoders are those of golden models, and whose heads have the weights of
// tests/golden/reward_models/make.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "weights/safetensors.h"

namespace tandem::model {

// The tensors of a head, by their names: shape and float32 values.
struct HeadTensor {
  std::vector<int64_t> shape;
  std::vector<float> values = {};  // empty: the golden ones
};
using HeadTensors = std::map<std::string, HeadTensor>;

inline std::vector<float> golden_head_values(int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>((i * 37 + 11) % 64 - 32) / 32.0F);
  return values;
}

// Returns the head of one label, or the two layers of Qwen2ForRewardModel.
inline HeadTensors golden_head(const std::string& architecture, int64_t hidden) {
  if (architecture != "Qwen2ForRewardModel") return {{"score.weight", {{1, hidden}}}};
  return {{"score.0.weight", {{hidden, hidden}}},
          {"score.0.bias", {{hidden}}},
          {"score.2.weight", {{1, hidden}}},
          {"score.2.bias", {{1}}}};
}

// Writes the model of `source` into the folder `target`, which it makes, as a reward model: its tokenizer, its
// config.json with this architecture and pad token, its weights and the head.
inline void write_reward_model(const std::string& source, const std::string& target, const std::string& architecture,
                               HeadTensors head, int64_t pad_token_id = 5) {
  std::filesystem::create_directories(target);
  base::Json index = {{"metadata", base::Json::object()}, {"weight_map", base::Json::object()}};
  for (const std::string& name : base::list_directory(source)) {
    if (name.ends_with(".index.json")) continue;
    // A file of this name would be taken for the whole model.
    const std::string copy = name == "model.safetensors" ? "decoder.safetensors" : name;
    std::filesystem::copy_file(source + "/" + name, target + "/" + copy);
    if (!name.ends_with(".safetensors")) continue;
    const weights::SafetensorsFile shard(source + "/" + name);
    for (const auto& [tensor, info] : shard.tensors()) index["weight_map"][tensor] = copy;
  }
  std::vector<weights::TensorBytes> tensors;
  for (auto& [name, tensor] : head) {
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    if (tensor.values.empty()) tensor.values = golden_head_values(count);
    tensors.push_back(
        {.name = name, .dtype = "F32", .shape = tensor.shape, .bytes = std::as_bytes(std::span(tensor.values))});
    index["weight_map"][name] = "head.safetensors";
  }
  weights::write_safetensors(target + "/head.safetensors", tensors);
  base::write_file_durably(target + "/model.safetensors.index.json", base::dump_json(index));
  base::Json config = base::read_json_file(source + "/config.json");
  config["architectures"] = {architecture};
  config["pad_token_id"] = pad_token_id;
  base::write_file_durably(target + "/config.json", base::dump_json(config));
}

}  // namespace tandem::model
