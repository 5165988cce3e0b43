// Qwen2 and Qwen2.5, dense: pre-norm blocks of attention whose q, k and v have biases and no norms, and a SwiGLU MLP.
// The formula is transformers' Qwen2ForCausalLM. This family's functions, a file each; the rows that name them are in
// model/registry.cc and, for make(), in model/model.cc.
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

namespace tandem::model::qwen2 {

ModelConfig parse(const ConfigReader& reader);
// Adds layers.i.qkv_bias [(H+2G)K].
weights::Layout layout(const ModelConfig& config);
BlockBytes block_bytes(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                       const AttentionBytes& attention);

// Needs torch.
std::unique_ptr<Model> make(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops,
                            const TensorRanks& ranks);

}  // namespace tandem::model::qwen2
