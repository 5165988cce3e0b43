// Llama 3.x, dense: pre-norm blocks of attention without biases and norms, and a SwiGLU MLP; rotary frequencies that
// may be scaled for a longer context (llama3). The formula is transformers' LlamaForCausalLM. This family's functions,
// a file each; the rows that name them are in model/registry.cc and, for make(), in model/model.cc.
#pragma once

#include <memory>

#include "model/config_reader.h"
#include "model/family.h"

namespace tandem::device {
class Ops;
}
namespace tandem::weights {
class WeightsView;
}

namespace tandem::model {
class Model;
class TensorRanks;
}  // namespace tandem::model

namespace tandem::model::llama {

ModelConfig parse(const ConfigReader& reader);
weights::Layout layout(const ModelConfig& config);
BlockBytes block_bytes(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                       const AttentionBytes& attention);

// Needs torch.
std::unique_ptr<Model> make(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops,
                            const TensorRanks& ranks);

}  // namespace tandem::model::llama
