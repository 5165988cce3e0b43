// Llama's tensors: those of every decoder and no others.
#include "model/decoder/layout.h"

#include "model/llama/llama.h"

namespace tandem::model::llama {
namespace {

void add_block(const ModelConfig& config, const decoder::LayerNames& names, weights::Layout& layout) {
  layout.tensors.push_back(
      decoder::norm(names.packed + "input_norm", names.hf + "input_layernorm.weight", config.hidden));
  layout.tensors.push_back(decoder::qkv_matrix(config, names));
  layout.tensors.push_back(decoder::o_matrix(config, names));
  decoder::add_swiglu_mlp(config, names, layout);
}

}  // namespace

weights::Layout layout(const ModelConfig& config) { return decoder::layout(config, add_block); }

}  // namespace tandem::model::llama
