#include "base/stand_ins.h"

#include "base/check.h"

namespace tandem::base {
namespace {

constexpr size_t kMaxCharacters = 65'000;  // of the plane's 65,534
constexpr size_t kStandInBytes = 4;

// Bytes of the UTF-8 character that begins `text`; 0 where none does.
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const size_t size = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (size == 0 || size > text.size()) return 0;
  for (size_t i = 1; i < size; ++i) {
    if (byte(i) >> 6 != 0b10) return 0;
  }
  // Overlong forms, surrogates, and what lies beyond Unicode.
  if (first == 0xE0 && byte(1) < 0xA0) return 0;
  if (first == 0xED && byte(1) >= 0xA0) return 0;
  if (first == 0xF0 && byte(1) < 0x90) return 0;
  if (first == 0xF4 && byte(1) >= 0x90) return 0;
  return size;
}

std::string stand_in(uint32_t index) {
  return {static_cast<char>(0xF3), static_cast<char>(0xB0 | index >> 12), static_cast<char>(0x80 | (index >> 6 & 0x3F)),
          static_cast<char>(0x80 | (index & 0x3F))};
}

}  // namespace

std::string StandIns::replace(std::string_view text, const std::string& name) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t size = character_bytes(text.substr(at));
    if (size <= 1) {
      result += text[at++];
      continue;
    }
    const std::string_view character = text.substr(at, size);
    auto found = index_of_.find(character);
    if (found == index_of_.end()) {
      TANDEM_USER_CHECK(characters_.size() < kMaxCharacters, name + ": more than", kMaxCharacters,
                        "different characters; is this the right file?");
      found = index_of_.emplace(std::string(character), static_cast<uint32_t>(characters_.size())).first;
      characters_.emplace_back(character);
    }
    result += stand_in(found->second);
    at += size;
  }
  return result;
}

std::string StandIns::restore(std::string_view text) const {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[at + i])); };
    if (byte(0) != 0xF3 || at + kStandInBytes > text.size()) {
      result += text[at++];
      continue;
    }
    const uint32_t index = (byte(1) & 0x0F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    // A library may print a part of a character; what is no stand-in of ours stays as it is.
    result += index < characters_.size() ? characters_[index] : std::string(text.substr(at, kStandInBytes));
    at += kStandInBytes;
  }
  return result;
}

}  // namespace tandem::base
