// Reads the keys of config.json that describe the rotary embedding. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config_reader.h"
#include "model/family.h"

namespace tandem::model::decoder {

struct Rope {
  double theta = 0.0;
  std::vector<float> factors;  // [K/2], what each frequency is multiplied by; empty: 1
};

// transformers 4 writes rope_theta and rope_scaling, transformers 5 both of them in rope_parameters. UserError where
// rope_theta is missing, said twice or out of range, or where the rotary embedding is partial, is scaled in another
// form than `scaling`, or has other keys.
Rope read_rope(const ConfigReader& reader, RopeScaling scaling, int64_t head_dim);

}  // namespace tandem::model::decoder
