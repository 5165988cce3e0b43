// Reads the keys of config.json that describe the rotary embedding. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/config_reader.h"
#include "model/family.h"

namespace tandem::model::decoder {

struct Rope {
  // The base of the frequencies theta^(-2i/K). Where R of K dims are rotated it is that of config.json to the power of
  // K/R, which gives the R/2 frequencies of that, and all other factors are 0.
  double theta = 0.0;
  std::vector<float> factors;     // [K/2], what each frequency is multiplied by; empty: 1
  double attention_factor = 1.0;  // what rotated queries and keys are multiplied by
  int64_t rotary_dims = 0;        // R
};

// transformers 4 writes rope_theta, partial_rotary_factor and rope_scaling, transformers 5 all of them in
// rope_parameters. UserError where rope_theta is missing, said twice or out of range, or where the rotary embedding is
// partial and the family does not have that, is scaled in a form that Tandem does not know (decoder/rope_scaling.h), or
// has other keys.
Rope read_rope(const ConfigReader& reader, const Family& family, int64_t head_dim);
// Returns that of the layers with a window, given that of the others.
Rope read_window_rope(const ConfigReader& reader, const Family& family, const Rope& rope);

// Returns whether the dims of a head lie elsewhere than where device::Ops rotates them (decoder/rotation.h).
bool reorders_heads(const ModelConfig& config, const Family& family);

}  // namespace tandem::model::decoder
