// XXH3-128 of bytes and files, as 32 hexadecimal digits: finds what a disk has changed. It keeps no attacker out.
#pragma once

#include <string>
#include <string_view>

namespace tandem::base {

std::string checksum(std::string_view bytes);
// Of a whole file, read a piece at a time. UserError when it cannot be read.
std::string file_checksum(const std::string& path);

}  // namespace tandem::base
