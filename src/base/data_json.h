// Reads the JSON of data files. Their numbers must stay exact, so whole numbers of more than 64 bits are refused. The
// parser is in json.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace tandem::base {

// Parses as parse_json() does, except that a whole number of more than 64 bits is a UserError and does not become a
// double.
Json parse_data_json(std::string_view text, const std::string& name, int64_t first_line = 1);

}  // namespace tandem::base
