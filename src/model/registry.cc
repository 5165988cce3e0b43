#include "model/registry.h"

#include <array>
#include <vector>

#include "base/check.h"

namespace tandem::model {
namespace {

using weights::Layout;
using weights::PackedTensor;
using weights::Slice;

using Shape = std::vector<int64_t>;

// A packed tensor made of HF tensors that lie one below the other.
PackedTensor stack(const std::string& name, const std::vector<Slice>& slices) {
  PackedTensor packed{.name = name, .shape = slices.front().shape, .slices = slices};
  packed.shape[0] = 0;
  for (Slice& slice : packed.slices) {
    slice.row_begin = packed.shape[0];
    packed.shape[0] += slice.shape[0];
  }
  return packed;
}

PackedTensor single(const std::string& name, const std::string& hf_name, const Shape& shape) {
  return stack(name, {Slice{.hf_name = hf_name, .shape = shape}});
}

void add_qwen3_block(const ModelConfig& config, int64_t layer, Layout& layout) {
  const std::string packed = "layers." + std::to_string(layer) + ".";
  const std::string hf = "model.layers." + std::to_string(layer) + ".";
  const int64_t E = config.hidden, K = config.head_dim, F = config.mlp;
  const int64_t q_rows = config.num_heads * K, kv_rows = config.num_kv_heads * K;
  layout.tensors.push_back(single(packed + "input_norm", hf + "input_layernorm.weight", {E}));
  layout.tensors.push_back(stack(packed + "qkv", {{.hf_name = hf + "self_attn.q_proj.weight", .shape = {q_rows, E}},
                                                  {.hf_name = hf + "self_attn.k_proj.weight", .shape = {kv_rows, E}},
                                                  {.hf_name = hf + "self_attn.v_proj.weight", .shape = {kv_rows, E}}}));
  layout.tensors.push_back(single(packed + "q_norm", hf + "self_attn.q_norm.weight", {K}));
  layout.tensors.push_back(single(packed + "k_norm", hf + "self_attn.k_norm.weight", {K}));
  layout.tensors.push_back(single(packed + "o", hf + "self_attn.o_proj.weight", {E, q_rows}));
  layout.tensors.push_back(single(packed + "post_norm", hf + "post_attention_layernorm.weight", {E}));
  layout.tensors.push_back(stack(packed + "gate_up", {{.hf_name = hf + "mlp.gate_proj.weight", .shape = {F, E}},
                                                      {.hf_name = hf + "mlp.up_proj.weight", .shape = {F, E}}}));
  layout.tensors.push_back(single(packed + "down", hf + "mlp.down_proj.weight", {E, F}));
}

Layout qwen3_layout(const ModelConfig& config) {
  Layout layout;
  const Shape table = {config.vocab, config.hidden};
  layout.tensors.push_back(single("embed", "model.embed_tokens.weight", table));
  for (int64_t layer = 0; layer < config.num_layers; ++layer) add_qwen3_block(config, layer, layout);
  layout.tensors.push_back(single("final_norm", "model.norm.weight", {config.hidden}));
  if (config.tied_embeddings) {
    layout.ignored.push_back("lm_head.weight");  // some publishers write the tied matrix twice
  } else {
    layout.tensors.push_back(single("head", "lm_head.weight", table));
  }
  return layout;
}

constexpr std::array kArchitectures = {
    Architecture{.name = "Qwen3ForCausalLM", .layout = qwen3_layout},
};

}  // namespace

const Architecture* find_architecture(const std::string& name) {
  for (const Architecture& row : kArchitectures) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

weights::Layout build_layout(const ModelConfig& config) {
  const Architecture* row = find_architecture(config.architecture);
  TANDEM_CHECK(row != nullptr, "no layout for", config.architecture);
  return row->layout(config);
}

std::string supported_architectures() {
  std::string names;
  for (const Architecture& row : kArchitectures) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

}  // namespace tandem::model
