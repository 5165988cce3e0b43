#include "model/reward_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "model/config_reader.h"
#include "model/registry.h"
#include "weights/checkpoint_files.h"

namespace tandem::model {
namespace {

using base::Json;

constexpr const char* kSuffix = "ForSequenceClassification";
constexpr const char* kHead = "score";

// Returns the name of the language model whose decoder a reward model has.
std::string decoder_of(const ConfigReader& reader) {
  const Json& names = reader.required("architectures");
  const std::string name = names.is_array() && names.size() == 1 && names[0].is_string() ? names[0].get<std::string>()
                                                                                         : ConfigReader::shown(names);
  std::string family;
  if (name.ends_with(kSuffix)) family = name.substr(0, name.size() - std::strlen(kSuffix));
  if (name == "Qwen2ForRewardModel") family = "Qwen2";
  if (family == "Gemma3Text") family = "Gemma3";  // the name that transformers gives its text model's head
  const std::string decoder = family + "ForCausalLM";
  if (family.empty() || find_family(decoder) == nullptr) {
    std::string known = supported_architectures();
    constexpr std::string_view kLanguageModel = "ForCausalLM";
    for (size_t at = known.find(kLanguageModel); at != std::string::npos; at = known.find(kLanguageModel))
      known.erase(at, kLanguageModel.size());
    reader.refuse("architectures", fmt::format("names {}, which is no reward model that Tandem knows; give an "
                                               "X{} with one label, where X is one of {}",
                                               name, kSuffix, known));
  }
  return decoder;
}

// Returns the float32 of a value of the file, whose dtype is one of those that match_layout() takes.
float widened(uint16_t bits, bool is_bfloat16) {
  if (is_bfloat16) return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  const int exponent = bits >> 10 & 0x1F, fraction = bits & 0x3FF;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0x1F) return static_cast<float>(sign * (fraction == 0 ? INFINITY : NAN));
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(0x400 + fraction, exponent - 25);
  return static_cast<float>(sign * magnitude);
}

// Reads a small tensor of that shape.
std::vector<float> read_values(const weights::CheckpointFiles& files, const std::string& name,
                               const std::vector<int64_t>& shape, const std::string& remedy) {
  const auto found = files.tensors().find(name);
  TANDEM_USER_CHECK(found != files.tensors().end(),
                    fmt::format("{}: there is no tensor {}; {}", files.directory(), name, remedy));
  const weights::TensorInfo& info = *found->second.tensor;
  TANDEM_USER_CHECK(info.shape == shape, fmt::format("{}: {} has the shape {} and not {}; {}", files.directory(), name,
                                                     base::dump_json(info.shape), base::dump_json(shape), remedy));
  TANDEM_USER_CHECK(
      info.dtype == "F32" || info.dtype == "BF16" || info.dtype == "F16",
      fmt::format("{}: {} is of dtype {}; F32, BF16 and F16 are supported", files.directory(), name, info.dtype));
  std::vector<std::byte> bytes(static_cast<size_t>(info.num_bytes()));
  found->second.file->read(info, 0, bytes);
  std::vector<float> values(bytes.size() / (info.dtype == "F32" ? 4 : 2));
  if (info.dtype == "F32") {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  } else {
    std::vector<uint16_t> halves(values.size());
    std::memcpy(halves.data(), bytes.data(), bytes.size());
    std::ranges::transform(halves, values.begin(), [&](uint16_t bits) { return widened(bits, info.dtype == "BF16"); });
  }
  TANDEM_USER_CHECK(
      std::ranges::all_of(values, [](float value) { return std::isfinite(value); }),
      fmt::format("{}: {} holds a value that is not finite; take another copy of the model", files.directory(), name));
  return values;
}

}  // namespace

ModelConfig read_reward_model_config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  TANDEM_USER_CHECK(base::file_exists(path), path + ": no such file; a Hugging Face model directory has one");
  Json json = base::parse_json(base::read_file(path, kMaxConfigBytes), path);
  json["architectures"] = Json::array({decoder_of(ConfigReader(json, path))});
  // The decoder has no matrix of logits, so nothing is tied to the embedding that the file would have twice.
  json["tie_word_embeddings"] = true;
  return parse_model_config(base::dump_json(json), path);
}

weights::Layout build_reward_layout(const ModelConfig& config) {
  weights::Layout layout = build_layout(config);
  // A head of logits that is left in the file is not used, so it may have any values.
  layout.tensors.front().slices.front().twin.clear();
  for (const char* const name : {".weight", ".bias", ".0.weight", ".0.bias", ".2.weight", ".2.bias"}) {
    layout.ignored.push_back(std::string(kHead) + name);
  }
  return layout;
}

int64_t scored_length(std::span<const int32_t> tokens, int32_t pad_token_id) {
  auto length = std::ssize(tokens);
  while (length > 1 && tokens[static_cast<size_t>(length - 1)] == pad_token_id) --length;
  // transformers takes the first token where all are padding.
  return length;
}

RewardHead::RewardHead(const std::string& directory, const ModelConfig& config) {
  const weights::CheckpointFiles files(directory);
  const std::string remedy = "a reward model gives one number (num_labels 1)";
  const auto read = [&](const std::string& name, int64_t width) {
    Layer layer = {
        .width = width, .weight = read_values(files, name + ".weight", {width, config.hidden}, remedy), .bias = {}};
    if (files.tensors().contains(name + ".bias")) layer.bias = read_values(files, name + ".bias", {width}, remedy);
    layers_.push_back(std::move(layer));
  };
  const std::string head = kHead;
  if (files.tensors().contains(head + ".0.weight")) {
    read(head + ".0", config.hidden);
    read(head + ".2", 1);
  } else {
    read(head, 1);
  }
}

std::vector<double> RewardHead::Layer::apply(std::span<const double> x) const {
  std::vector<double> result(static_cast<size_t>(width));
  for (size_t row = 0; row < result.size(); ++row) {
    double sum = bias.empty() ? 0.0 : static_cast<double>(bias[row]);
    for (size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(weight[row * x.size() + i]) * x[i];
    result[row] = sum;
  }
  return result;
}

double RewardHead::score(std::span<const float> hidden) const {
  std::vector<double> x(hidden.begin(), hidden.end());
  for (size_t i = 0; i < layers_.size(); ++i) {
    x = layers_[i].apply(x);
    if (i + 1 == layers_.size()) break;
    for (double& value : x) value = std::max(value, 0.0);
  }
  return x.front();
}

}  // namespace tandem::model
