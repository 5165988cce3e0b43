// Qwen2's tensors: those of every decoder, and the biases of q, k and v.
#include "model/decoder/layout.h"

#include "model/qwen2/qwen2.h"

namespace tandem::model::qwen2 {
namespace {

void add_block(const ModelConfig& config, const decoder::LayerNames& names, weights::Layout& layout) {
  const int64_t q_rows = config.num_heads * config.head_dim, kv_rows = config.num_kv_heads * config.head_dim;
  layout.tensors.push_back(
      decoder::norm(names.packed + "input_norm", names.hf + "input_layernorm.weight", config.hidden));
  layout.tensors.push_back(decoder::qkv_matrix(config, names));
  layout.tensors.push_back(decoder::bias(
      names.packed + "qkv_bias", {decoder::rows_of_part(config, names.hf + "self_attn.q_proj.bias", {q_rows}),
                                  decoder::rows_of_part(config, names.hf + "self_attn.k_proj.bias", {kv_rows}),
                                  decoder::rows_of_part(config, names.hf + "self_attn.v_proj.bias", {kv_rows})}));
  layout.tensors.push_back(decoder::o_matrix(config, names));
  decoder::add_swiglu_mlp(config, names, layout);
}

}  // namespace

weights::Layout layout(const ModelConfig& config) { return decoder::layout(config, add_block); }

}  // namespace tandem::model::qwen2
