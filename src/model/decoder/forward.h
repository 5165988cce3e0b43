// The forward of a decoder: embedding, blocks (decoder/block.h), final norm and head.
#pragma once

#include <memory>

#include "device/ops.h"
#include "model/config.h"
#include "model/family.h"
#include "model/model.h"
#include "model/tensor_ranks.h"
#include "weights/store.h"

namespace tandem::model::decoder {

// Makes the model that make_model() returns. Its head is the embedding where it is tied.
std::unique_ptr<Model> make_decoder(const ModelConfig& config, const Family& family, const weights::WeightsView& view,
                                    const device::Ops& ops, const TensorRanks& ranks);

}  // namespace tandem::model::decoder
