// HMAC-SHA256 (RFC 2104; OpenSSL's): who knows the key wrote the bytes.
#pragma once

#include <string>
#include <string_view>

namespace tandem::base {

// 64 hexadecimal digits.
std::string hmac_sha256(std::string_view key, std::string_view bytes);
// The same as 32 bytes.
std::string hmac_sha256_bytes(std::string_view key, std::string_view bytes);

// Whether the two are equal, in a time that does not tell where they differ.
bool are_equal_secrets(std::string_view a, std::string_view b);

}  // namespace tandem::base
