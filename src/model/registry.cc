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
constexpr auto kSmolLM3Keys = std::to_array<FixedKey>({{"attention_bias", false, kNoBiases},
                                                       {"mlp_bias", false, kNoBiases},
                                                       {"use_sliding_window", false, kNoSlidingWindow}});
constexpr auto kUnbiasedKeys = std::to_array<FixedKey>({{"attention_bias", false, kNoBiases}});
constexpr auto kGemma3Keys =
    std::to_array<FixedKey>({{"attention_bias", false, kNoBiases},
                             {"use_bidirectional_attention", false, "attention to later tokens is not supported"}});
constexpr auto kSoftCaps = std::to_array<const char*>({"attn_logit_softcapping", "final_logit_softcapping"});
constexpr BlockNorms kOlmoNorms = {.attention_input = nullptr,
                                   .attention_output = "post_attention_layernorm",
                                   .mlp_input = nullptr,
                                   .mlp_output = "post_feedforward_layernorm"};
constexpr auto kPhi3ZeroKeys = std::to_array<const char*>({"resid_pdrop", "embd_pdrop"});

// The formula of each is that of transformers' class of the same name.
constexpr std::array kFamilies = {
    // Qwen3
    Family{
        .architecture = "Qwen3ForCausalLM", .qk_norm = QkNorm::kHead, .needs_head_dim = true, .fixed_keys = kQwen3Keys},
    // The sparse models of Qwen3, such as Qwen3-30B-A3B
    Family{.architecture = "Qwen3MoeForCausalLM",
           .qk_norm = QkNorm::kHead,
           .mlp = MlpKind::kSparse,
           .needs_head_dim = true,
           .fixed_keys = kQwen3Keys},
    // This row is Qwen2 and Qwen2.5.
    Family{.architecture = "Qwen2ForCausalLM",
           .sparse_architecture = "Qwen2MoeForCausalLM",
           .qkv_bias = true,
           .fixed_keys = kQwen2Keys},
    // This row is Llama 3.x.
    Family{.architecture = "LlamaForCausalLM", .fixed_keys = kLlamaKeys},
    // Mistral 7B, Nemo, Small, and Ministral 8B as it was first published
    Family{.architecture = "MistralForCausalLM",
           .windowed = WindowedLayers::kAll,
           .needs_window_key = true,
           .fixed_keys = kUnbiasedKeys},
    Family{.architecture = "MinistralForCausalLM", .windowed = WindowedLayers::kTyped, .fixed_keys = kUnbiasedKeys},
    Family{.architecture = "SmolLM3ForCausalLM",
           .ties_embeddings = true,
           .unrotated = UnrotatedLayers::kListed,
           .fixed_keys = kSmolLM3Keys},
    Family{.architecture = "Olmo2ForCausalLM",
           .qk_norm = QkNorm::kWhole,
           .norms = kOlmoNorms,
           .fixed_keys = kUnbiasedKeys},
    // OLMo 3. Its models were trained with YaRN in the layers without a window alone.
    Family{.architecture = "Olmo3ForCausalLM",
           .qk_norm = QkNorm::kWhole,
           .norms = kOlmoNorms,
           .windowed = WindowedLayers::kTyped,
           .unwindowed_interval = 4,
           .window_rope = WindowRope::kUnscaled,
           .fixed_keys = kUnbiasedKeys},
    // The text models of Gemma 3
    Family{.architecture = "Gemma3ForCausalLM",
           .qk_norm = QkNorm::kHead,
           .norms = {.attention_output = "post_attention_layernorm",
                     .mlp_input = "pre_feedforward_layernorm",
                     .mlp_output = "post_feedforward_layernorm"},
           .norm_offset = 1.0,
           .activation = Activation::kGelu,
           .scales_embeddings = true,
           .reads_query_scalar = true,
           .needs_head_dim = true,
           .ties_embeddings = true,
           .windowed = WindowedLayers::kTyped,
           .unwindowed_interval = 6,
           .reads_window_pattern = true,
           .window_rope = WindowRope::kOwn,
           .fixed_keys = kGemma3Keys,
           .unset_keys = kSoftCaps},
    // Phi-3 and Phi-4
    Family{.architecture = "Phi3ForCausalLM",
           .fuses_qkv = true,
           .fuses_gate_up = true,
           .scales_rope = false,
           .rotary_factor = 1.0,
           .windowed = WindowedLayers::kAll,
           .fixed_keys = kUnbiasedKeys,
           .zero_keys = kPhi3ZeroKeys},
    // GLM-4 9B as it was first published
    Family{.architecture = "GlmForCausalLM",
           .reads_attention_bias = true,
           .fuses_gate_up = true,
           .rotary_pairs = RotaryPairs::kNeighbours,
           .rotary_factor = 0.5},
    // GLM-4-0414
    Family{.architecture = "Glm4ForCausalLM",
           .reads_attention_bias = true,
           .norms = {.attention_output = "post_self_attn_layernorm", .mlp_output = "post_mlp_layernorm"},
           .fuses_gate_up = true,
           .rotary_pairs = RotaryPairs::kNeighbours,
           .rotary_factor = 0.5},
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

weights::Layout build_layout(const ModelConfig& config) {
  weights::Layout layout = decoder::layout(config, family_of(config));
  for (weights::PackedTensor& packed : layout.tensors) {
    if (packed.takes_adapter) packed.quantisation = config.quantisation;
  }
  return layout;
}

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
