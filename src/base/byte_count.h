// Parses byte counts as people write them: 1073741824, 1GiB, 1.5G.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem::base {

// Returns the number of bytes. KiB, MiB, GiB, TiB and their short forms K, M, G, T are powers of 1024, as memory is
// counted; KB, MB, GB, TB are powers of 1000, as disks are counted. B, or no unit, is a byte. Letters may be of either
// case, and a space may stand before the unit. Returns nullopt for anything else: a negative number, a fraction of a
// byte, or more than 63 bits.
std::optional<int64_t> parse_byte_count(std::string_view text);

// This sentence of --help explains the units.
inline constexpr const char* kByteUnits =
    "a number of bytes, or one with a unit, such as 1GiB: K, M, G, T and KiB, MiB, GiB, TiB are powers of 1024, "
    "KB, MB, GB, TB powers of 1000";

}  // namespace tandem::base
