// The scaled forms of the rotary embedding, by the names that config.json gives them in rope_type. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config_reader.h"

namespace tandem::model::decoder {

// Holds the numbers by which a scaled rotary embedding differs from the default one.
struct ScaledRope {
  std::vector<float> factors;     // [dims / 2], what each frequency is multiplied by
  double attention_factor = 1.0;  // what rotated queries and keys are multiplied by
};

// A form: its name, the keys of config.json that belong to it, and what it makes of them. `rope` is the object that has
// the keys, theta the base of the frequencies theta^(-2i/dims), `dims` how many dims of a head are rotated. UserError,
// by key, for what is missing, of the wrong type or out of range.
struct RopeForm {
  const char* type;
  std::vector<std::string> keys;
  ScaledRope (*scale)(const ConfigReader& rope, double theta, int64_t dims);
};

// Returns nullptr for a name that Tandem does not know.
const RopeForm* find_rope_form(const std::string& type);

// Returns "linear, llama3, yarn", for messages.
std::string known_rope_forms();

}  // namespace tandem::model::decoder
