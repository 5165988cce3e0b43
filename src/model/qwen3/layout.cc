// Qwen3's tensors: those of every decoder, and a norm each for the heads of q and k.
#include "model/decoder/layout.h"

#include "model/qwen3/qwen3.h"

namespace tandem::model::qwen3 {
namespace {

void add_block(const ModelConfig& config, const decoder::LayerNames& names, weights::Layout& layout) {
  const int64_t E = config.hidden, K = config.head_dim;
  layout.tensors.push_back(decoder::norm(names.packed + "input_norm", names.hf + "input_layernorm.weight", E));
  layout.tensors.push_back(decoder::qkv_matrix(config, names));
  layout.tensors.push_back(decoder::norm(names.packed + "q_norm", names.hf + "self_attn.q_norm.weight", K));
  layout.tensors.push_back(decoder::norm(names.packed + "k_norm", names.hf + "self_attn.k_norm.weight", K));
  layout.tensors.push_back(decoder::o_matrix(config, names));
  decoder::add_swiglu_mlp(config, names, layout);
}

}  // namespace

weights::Layout layout(const ModelConfig& config) { return decoder::layout(config, add_block); }

}  // namespace tandem::model::qwen3
