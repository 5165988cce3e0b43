// SHA-256 (FIPS 180-4; OpenSSL's), for what must be compared without being known: unlike base/checksum, whose short
// inputs can be computed back from their checksum, it does not tell what it was made of.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem::base {

constexpr size_t kSha256Bytes = 32;

// 64 hexadecimal digits.
std::string sha256(std::string_view bytes);

// Two lower-case hexadecimal digits a byte.
std::string hex_digits(std::string_view bytes);

// "sha256:..." of the text of an option, which may be a secret: equal for equal values of one option alone.
std::string fingerprint(std::string_view option, std::string_view value);
bool is_fingerprint(std::string_view text);

}  // namespace tandem::base
