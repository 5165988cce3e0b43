// The keys of config.json that dense decoder families share, in both published forms (transformers 4 and 5). No torch.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/config_reader.h"

namespace tandem::model::decoder {

// Widths, counts, norm, initialisation, tying and dtype; head_dim and rope_theta are the family's. UserError, by key,
// for what is missing, of the wrong type or out of range, and for what no family here computes: another activation,
// dropout, quantised weights, layers of other kinds than full attention.
ModelConfig read_decoder(const ConfigReader& reader);

// An even number. UserError: it is missing, odd or out of range.
int64_t read_head_dim(const ConfigReader& reader);

// rope_theta, beside rope_scaling (transformers 4) or inside rope_parameters (transformers 5). UserError: it is
// missing, said twice, out of range, or the rotary embedding is scaled or partial.
double read_rope_theta(const ConfigReader& reader);

// UserError: config.json says true for `key`, which Tandem does not compute; `what` says so.
void refuse_true(const ConfigReader& reader, const char* key, const char* what);

}  // namespace tandem::model::decoder
