// Computes XXH3-128 of bytes and files, as 32 hexadecimal digits. It finds damage by a disk; it is no protection
// against an attacker.
#pragma once

#include <string>
#include <string_view>

namespace tandem::base {

std::string checksum(std::string_view bytes);
// Returns the checksum of a whole file, which is read in pieces. Throws UserError when it cannot be read.
std::string file_checksum(const std::string& path);

}  // namespace tandem::base
