#include "model/registry.h"

#include <fmt/format.h>

#include <array>

#include "base/check.h"
#include "base/json.h"
#include "model/decoder/cost.h"
#include "model/llama/llama.h"
#include "model/qwen2/qwen2.h"
#include "model/qwen3/qwen3.h"

namespace tandem::model {
namespace {

constexpr std::array kFamilies = {
    Family{.architecture = "Qwen3ForCausalLM",
           .sparse_architecture = "Qwen3MoeForCausalLM",
           .parse = qwen3::parse,
           .layout = qwen3::layout,
           .block_bytes = qwen3::block_bytes,
           .forward_flops = decoder::forward_flops},
    Family{.architecture = "Qwen2ForCausalLM",
           .sparse_architecture = "Qwen2MoeForCausalLM",
           .parse = qwen2::parse,
           .layout = qwen2::layout,
           .block_bytes = qwen2::block_bytes,
           .forward_flops = decoder::forward_flops},
    Family{.architecture = "LlamaForCausalLM",
           .sparse_architecture = nullptr,
           .parse = llama::parse,
           .layout = llama::layout,
           .block_bytes = llama::block_bytes,
           .forward_flops = decoder::forward_flops},
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

weights::Layout build_layout(const ModelConfig& config) { return family_of(config).layout(config); }

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
