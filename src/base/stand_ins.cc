#include "base/stand_ins.h"

#include "base/check.h"
#include "base/utf8.h"

namespace tandem::base {
namespace {

constexpr size_t kMaxCharacters = 65'000;  // the plane has 65,534
constexpr size_t kStandInBytes = 4;

std::string stand_in(uint32_t index) {
  return {static_cast<char>(0xF3), static_cast<char>(0xB0 | index >> 12), static_cast<char>(0x80 | (index >> 6 & 0x3F)),
          static_cast<char>(0x80 | (index & 0x3F))};
}

}  // namespace

std::string CharacterPlaceholders::replace(std::string_view text, const std::string& name) {
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

std::string CharacterPlaceholders::restore(std::string_view text) const {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[at + i])); };
    if (byte(0) != 0xF3 || at + kStandInBytes > text.size()) {
      result += text[at++];
      continue;
    }
    const uint32_t index = (byte(1) & 0x0F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    // A library may print a part of a character; a sequence that is none of our stand-ins stays as it is.
    result += index < characters_.size() ? characters_[index] : std::string(text.substr(at, kStandInBytes));
    at += kStandInBytes;
  }
  return result;
}

}  // namespace tandem::base
