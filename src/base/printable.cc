#include "base/printable.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>

namespace tandem::base {
namespace {

struct Character {
  uint32_t code = 0;
  size_t num_bytes = 0;  // 0: no UTF-8
};

// Returns the character that `text` begins with (RFC 3629: no overlong forms, no surrogates, nothing past U+10FFFF).
Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t num_bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < num_bytes) return {};
  uint32_t code = lead & (0x7FU >> num_bytes);
  for (size_t i = 1; i < num_bytes; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return {};
    code = code << 6U | (byte(i) & 0x3FU);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < kSmallest[num_bytes] || code > 0x10FFFF || is_surrogate) return {};
  return {code, num_bytes};
}

bool is_command(uint32_t code) {
  if (code == '\n' || code == '\t') return false;
  return code < 0x20 || (code >= 0x7F && code <= 0x9F) || code == 0x61C || code == 0x200E || code == 0x200F ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Character character = first_character(text.substr(at));
    if (character.num_bytes == 0) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at++]));
      continue;
    }
    if (is_command(character.code)) {
      result += fmt::format("\\u{:04x}", character.code);
    } else {
      result += text.substr(at, character.num_bytes);
    }
    at += character.num_bytes;
  }
  return result;
}

}  // namespace tandem::base
