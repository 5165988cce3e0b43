// The keys of config.json that describe the rotary embedding. No torch.
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

// rope_theta beside rope_scaling (transformers 4) or inside rope_parameters (transformers 5). UserError: rope_theta is
// missing, said twice or out of range, or the rotary embedding is partial, or scaled in another form than `scaling`, or
// has other keys.
Rope read_rope(const ConfigReader& reader, RopeScaling scaling, int64_t head_dim);

}  // namespace tandem::model::decoder
