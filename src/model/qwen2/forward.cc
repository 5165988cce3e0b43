// Qwen2's block: model/decoder's rotary one, with biases on q, k and v.
#include "model/decoder/forward.h"
#include "model/qwen2/qwen2.h"

namespace tandem::model::qwen2 {

std::unique_ptr<Model> make(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops,
                            const TensorRanks& ranks) {
  return decoder::make_decoder(config, view, ops, ranks, [](const decoder::Layer& layer) {
    return decoder::make_rotary_block(layer, layer.linear("qkv", Cut::kRows, "qkv_bias"));
  });
}

}  // namespace tandem::model::qwen2
