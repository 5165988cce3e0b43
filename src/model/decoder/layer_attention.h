// Reads the keys of config.json that say how the layers' attention differs. No torch.
#pragma once

#include <vector>

#include "model/config.h"
#include "model/config_reader.h"
#include "model/decoder/rope.h"
#include "model/family.h"

namespace tandem::model::decoder {

// Returns ModelConfig::attention: one entry where all layers are alike, else one for each. `config` has its widths
// already. UserError, by key, for lists of another length or with other values.
std::vector<LayerAttention> read_attention(const ConfigReader& reader, const Family& family, const ModelConfig& config,
                                           const Rope& rope);

}  // namespace tandem::model::decoder
