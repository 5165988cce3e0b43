// Recognizes UTF-8 text (RFC 3629).
#pragma once

#include <cstddef>
#include <string_view>

namespace tandem::base {

// Returns the bytes of the character that begins `text`, which is not empty; 0 if none does.
size_t character_bytes(std::string_view text);

bool is_utf8(std::string_view text);

}  // namespace tandem::base
