// Reads the config.json of a decoder, in both published forms (transformers 4 and 5). No torch.
#pragma once

#include "model/config.h"
#include "model/config_reader.h"
#include "model/family.h"

namespace tandem::model::decoder {

// Reads the keys that all families share, and those that the family's row adds. The architecture, and EOS and padding
// ids, are the caller's. UserError, by key, for what is missing, of the wrong type or out of range, and for what Tandem
// does not compute: another activation, dropout, weights that are quantised otherwise than bitsandbytes does it, layers
// of other kinds than full attention, and what the row fixes.
ModelConfig read_config(const ConfigReader& reader, const Family& family);

}  // namespace tandem::model::decoder
