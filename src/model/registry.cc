#include "model/registry.h"

#include <fmt/format.h>

#include <array>

#include "base/check.h"
#include "model/config_reader.h"
#include "model/decoder/layout.h"

namespace tandem::model {
namespace {

constexpr const char* kNoBiases = "biases are not supported";
constexpr const char* kNoSlidingWindow = "sliding-window attention is not supported";

constexpr auto kQwen3Keys =
    std::to_array<FixedKey>({{"attention_bias", false, kNoBiases}, {"use_sliding_window", false, kNoSlidingWindow}});
// The published folders have a number for sliding_window, which counts only where use_sliding_window says true.
constexpr auto kQwen2Keys = std::to_array<FixedKey>(
    {{"attention_bias", true, "Qwen2's q, k and v have biases: remove it, or correct architectures"},
     {"use_sliding_window", false, kNoSlidingWindow},
     {"use_mrope", false, "rotary embeddings of several position axes are not supported"}});
constexpr auto kLlamaKeys =
    std::to_array<FixedKey>({{"attention_bias", false, kNoBiases}, {"mlp_bias", false, kNoBiases}});

// The formula of each is that of transformers' class of the same name.
constexpr std::array kFamilies = {
    // Qwen3
    Family{.architecture = "Qwen3ForCausalLM", .qk_norm = true, .needs_head_dim = true, .fixed_keys = kQwen3Keys},
    // The sparse models of Qwen3, such as Qwen3-30B-A3B
    Family{.architecture = "Qwen3MoeForCausalLM",
           .qk_norm = true,
           .mlp = MlpKind::kSparse,
           .needs_head_dim = true,
           .fixed_keys = kQwen3Keys},
    // This row is Qwen2 and Qwen2.5.
    Family{.architecture = "Qwen2ForCausalLM",
           .sparse_architecture = "Qwen2MoeForCausalLM",
           .qkv_bias = true,
           .fixed_keys = kQwen2Keys},
    // This row is Llama 3.x.
    Family{.architecture = "LlamaForCausalLM", .rope_scaling = RopeScaling::kLlama3, .fixed_keys = kLlamaKeys},
};

}  // namespace

const Family* find_family(const std::string& architecture) {
  for (const Family& family : kFamilies) {
    if (architecture == family.architecture) return &family;
  }
  return nullptr;
}

const Family& family_of(const ModelConfig& config) {
  const Family* family = find_family(config.architecture);
  TANDEM_CHECK(family != nullptr, "no model family has the architecture", config.architecture);
  return *family;
}

weights::Layout build_layout(const ModelConfig& config) { return decoder::layout(config, family_of(config)); }

std::string supported_architectures() {
  std::string names;
  for (const Family& family : kFamilies) names += (names.empty() ? "" : ", ") + std::string(family.architecture);
  return names;
}

std::string refusal_of(const std::string& architecture) {
  for (const Family& family : kFamilies) {
    if (family.sparse_architecture == nullptr || architecture != family.sparse_architecture) continue;
    return fmt::format(
        "names the sparse model {}, which is not supported yet; Tandem trains {}: take a dense checkpoint "
        "of that family",
        architecture, supported_architectures());
  }
  return fmt::format("names {}, which is not supported; Tandem trains {}", ConfigReader::shown(architecture),
                     supported_architectures());
}

}  // namespace tandem::model
