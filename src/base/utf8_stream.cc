#include "base/utf8_stream.h"

#include <cstddef>
#include <cstdint>

namespace tandem::base {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// The bytes at the front of `bytes` that belong together.
struct Front {
  size_t size = 0;
  enum { kCharacter, kInvalid, kIncomplete } kind = kCharacter;
};

bool between(char byte, uint8_t low, uint8_t high) {
  const auto value = static_cast<uint8_t>(byte);
  return value >= low && value <= high;
}

// Well-formed UTF-8 by the table of Unicode 15, section 3.9: the second byte's range depends on the first.
Front front_of(std::string_view bytes) {
  const auto first = static_cast<uint8_t>(bytes[0]);
  if (first < 0x80) return {1, Front::kCharacter};
  if (first < 0xC2 || first > 0xF4) return {1, Front::kInvalid};
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (first == 0xE0) low = 0xA0;   // no overlong form
  if (first == 0xED) high = 0x9F;  // no surrogate
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;  // nothing beyond U+10FFFF
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {i, Front::kIncomplete};
    if (!between(bytes[i], low, high)) return {i, Front::kInvalid};
    low = 0x80;
    high = 0xBF;
  }
  return {length, Front::kCharacter};
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  waiting_.append(bytes);
  std::string text;
  std::string_view rest = waiting_;
  while (!rest.empty()) {
    const Front front = front_of(rest);
    if (front.kind == Front::kIncomplete) break;
    text.append(front.kind == Front::kCharacter ? rest.substr(0, front.size) : kReplacement);
    rest.remove_prefix(front.size);
  }
  waiting_ = std::string(rest);
  return text;
}

std::string Utf8Stream::finish() {
  const bool cut_short = !waiting_.empty();
  waiting_.clear();
  return cut_short ? std::string(kReplacement) : std::string();
}

std::string utf8_text(std::string_view bytes) {
  Utf8Stream stream;
  const std::string text = stream.push(bytes);
  return text + stream.finish();
}

}  // namespace tandem::base
