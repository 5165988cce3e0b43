#include "model/decoder/layout.h"

namespace tandem::model::decoder {

using weights::Layout;
using weights::PackedTensor;
using weights::Slice;

namespace {

PackedTensor stack(const std::string& name, const HfTensors& slices) {
  PackedTensor packed{.name = name, .shape = slices.front().shape, .slices = slices};
  packed.shape[0] = 0;
  for (Slice& slice : packed.slices) {
    slice.row_begin = packed.shape[0];
    packed.shape[0] += slice.shape[0];
  }
  return packed;
}

}  // namespace

LayerNames::LayerNames(int64_t layer)
    : packed("layers." + std::to_string(layer) + "."), hf("model.layers." + std::to_string(layer) + ".") {}

PackedTensor matrix(const std::string& packed_name, const HfTensors& slices) { return stack(packed_name, slices); }

PackedTensor norm(const std::string& packed_name, const std::string& hf_name, int64_t width) {
  PackedTensor packed = stack(packed_name, {{.hf_name = hf_name, .shape = {width}}});
  packed.init = weights::Init::kOnes;
  packed.decays = false;
  return packed;
}

PackedTensor bias(const std::string& packed_name, const HfTensors& slices) {
  PackedTensor packed = stack(packed_name, slices);
  packed.init = weights::Init::kZeros;
  packed.decays = false;
  return packed;
}

PackedTensor qkv_matrix(const ModelConfig& config, const LayerNames& names) {
  const int64_t E = config.hidden, K = config.head_dim;
  const int64_t q_rows = config.num_heads * K, kv_rows = config.num_kv_heads * K;
  return matrix(names.packed + "qkv", {{.hf_name = names.hf + "self_attn.q_proj.weight", .shape = {q_rows, E}},
                                       {.hf_name = names.hf + "self_attn.k_proj.weight", .shape = {kv_rows, E}},
                                       {.hf_name = names.hf + "self_attn.v_proj.weight", .shape = {kv_rows, E}}});
}

PackedTensor o_matrix(const ModelConfig& config, const LayerNames& names) {
  return matrix(names.packed + "o", {{.hf_name = names.hf + "self_attn.o_proj.weight",
                                      .shape = {config.hidden, config.num_heads * config.head_dim}}});
}

void add_swiglu_mlp(const ModelConfig& config, const LayerNames& names, Layout& layout) {
  const int64_t E = config.hidden, F = config.mlp;
  layout.tensors.push_back(norm(names.packed + "post_norm", names.hf + "post_attention_layernorm.weight", E));
  layout.tensors.push_back(
      matrix(names.packed + "gate_up", {{.hf_name = names.hf + "mlp.gate_proj.weight", .shape = {F, E}},
                                        {.hf_name = names.hf + "mlp.up_proj.weight", .shape = {F, E}}}));
  layout.tensors.push_back(
      matrix(names.packed + "down", {{.hf_name = names.hf + "mlp.down_proj.weight", .shape = {E, F}}}));
}

Layout layout(const ModelConfig& config, void (*add_block)(const ModelConfig&, const LayerNames&, Layout&)) {
  Layout layout;
  const std::vector<int64_t> table = {config.vocab, config.hidden};
  layout.tensors.push_back(matrix("embed", {{.hf_name = "model.embed_tokens.weight", .shape = table}}));
  for (int64_t layer = 0; layer < config.num_layers; ++layer) add_block(config, LayerNames(layer), layout);
  layout.tensors.push_back(norm("final_norm", "model.norm.weight", config.hidden));
  if (config.tied_embeddings) {
    layout.ignored.push_back("lm_head.weight");  // some publishers write the tied matrix twice
  } else {
    layout.tensors.push_back(matrix("head", {{.hf_name = "lm_head.weight", .shape = table}}));
  }
  return layout;
}

}  // namespace tandem::model::decoder
