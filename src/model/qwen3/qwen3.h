// Qwen3, dense: pre-norm blocks of attention with per-head norms on q and k before the rotation, and a SwiGLU MLP; no
// biases. The formula is transformers' Qwen3ForCausalLM. This family's functions, a file each; the rows that name them
// are in model/registry.cc and, for make(), in model/model.cc.
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

namespace tandem::model::qwen3 {

ModelConfig parse(const ConfigReader& reader);
weights::Layout layout(const ModelConfig& config);
BlockBytes block_bytes(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                       const AttentionBytes& attention);

// Needs torch.
std::unique_ptr<Model> make(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops,
                            const TensorRanks& ranks);

}  // namespace tandem::model::qwen3
