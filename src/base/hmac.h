// HMAC-SHA256 (RFC 2104, by OpenSSL) proves that a holder of the key wrote the bytes.
#pragma once

#include <string>
#include <string_view>

namespace tandem::base {

// Returns 64 hexadecimal digits.
std::string hmac_sha256(std::string_view key, std::string_view bytes);
// Returns the same value as 32 bytes.
std::string hmac_sha256_bytes(std::string_view key, std::string_view bytes);

// Returns whether the two are equal, in a time that does not depend on where they differ.
bool are_equal_secrets(std::string_view a, std::string_view b);

}  // namespace tandem::base
