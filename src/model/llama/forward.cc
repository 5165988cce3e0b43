// Llama's block: model/decoder's rotary one.
#include "model/decoder/forward.h"
#include "model/llama/llama.h"

namespace tandem::model::llama {

std::unique_ptr<Model> make(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops,
                            const TensorRanks& ranks) {
  return decoder::make_decoder(config, view, ops, ranks, [](const decoder::Layer& layer) {
    return decoder::make_rotary_block(layer, layer.linear("qkv", Cut::kRows));
  });
}

}  // namespace tandem::model::llama
