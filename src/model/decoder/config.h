// The keys of config.json that dense decoder families share, in both published forms (transformers 4 and 5). No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/config_reader.h"

namespace tandem::model::decoder {

// Widths, counts, norm, initialisation, tying and dtype; head_dim and rope_theta are the family's. UserError, by key,
// for what is missing, of the wrong type or out of range, and for what no family here computes: another activation,
// dropout, quantised weights, layers of other kinds than full attention.
ModelConfig read_decoder(const ConfigReader& reader);

// An even number. UserError: it is missing, odd or out of range.
int64_t read_head_dim(const ConfigReader& reader);

// The same, or hidden / heads where config.json does not say it. UserError: that is no whole number.
int64_t read_head_dim_or_quotient(const ConfigReader& reader, const ModelConfig& config);

// A scaled rotary embedding that a family computes beside the default one: its name in rope_type, and its keys.
struct ScaledRope {
  std::string type;
  std::vector<std::string> keys;
};
struct RopeKeys {
  double theta = 0.0;
  std::optional<ConfigReader> scaled;  // the object that has the keys of the scaled form, where config.json names it
};
// rope_theta beside rope_scaling (transformers 4) or inside rope_parameters (transformers 5). UserError: rope_theta is
// missing, said twice or out of range, or the rotary embedding is partial, or scaled in another form, or has other
// keys.
RopeKeys read_rope(const ConfigReader& reader, const ScaledRope& form);
// The same for a family that computes the default rotary embedding alone.
double read_rope_theta(const ConfigReader& reader);

// UserError: config.json says true for `key`, which Tandem does not compute; `what` says so.
void refuse_true(const ConfigReader& reader, const char* key, const char* what);

}  // namespace tandem::model::decoder
