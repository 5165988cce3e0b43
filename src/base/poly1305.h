// Poly1305 (RFC 8439, 2.5): who knows the key wrote the bytes. Many times faster than an HMAC, so it is for much, and a
// key is for one text alone: two texts with tags of one key give the key away.
#pragma once

#include <string>
#include <string_view>

namespace tandem::base {

constexpr size_t kOneTimeKeyBytes = 32;

// 32 hexadecimal digits. `one_time_key`: kOneTimeKeyBytes random bytes, as hmac_sha256_bytes() makes them.
std::string poly1305(std::string_view one_time_key, std::string_view bytes);

}  // namespace tandem::base
