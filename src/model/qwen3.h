// Qwen3, dense: pre-norm blocks of attention with per-head norms on q and k before the rotation, and a SwiGLU MLP; no
// biases. The formula is transformers' Qwen3ForCausalLM.
#pragma once

#include <memory>

#include "model/model.h"

namespace tandem::model {

std::unique_ptr<Model> make_qwen3(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops);

}  // namespace tandem::model
