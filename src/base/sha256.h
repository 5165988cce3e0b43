// SHA-256 (FIPS 180-4, by OpenSSL), for values that must be compared without being revealed: base/checksum does not
// hide its input, since a short one can be computed back from its checksum.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem::base {

constexpr size_t kSha256Bytes = 32;

// Returns 64 hexadecimal digits.
std::string sha256(std::string_view bytes);

// Returns two lower-case hexadecimal digits per byte.
std::string hex_digits(std::string_view bytes);

// Returns "sha256:..." for the text of an option, which may be a secret. Only equal values of the same option give
// equal fingerprints.
std::string fingerprint(std::string_view option, std::string_view value);
bool is_fingerprint(std::string_view text);

}  // namespace tandem::base
