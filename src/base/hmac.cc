#include "base/hmac.h"

#include <charconv>
#include <cstddef>

#include "base/sha256.h"

namespace tandem::base {
namespace {

constexpr size_t kBlockBytes = 64;
constexpr char kInner = 0x36, kOuter = 0x5c;

// The bytes that these hexadecimal digits stand for, two for each.
std::string bytes_of(const std::string& digits) {
  std::string result;
  for (size_t at = 0; at < digits.size(); at += 2) {
    unsigned byte = 0;
    std::from_chars(digits.data() + at, digits.data() + at + 2, byte, 16);
    result += static_cast<char>(byte);
  }
  return result;
}

std::string digest(std::string_view bytes) { return bytes_of(sha256(bytes)); }

std::string mixed(std::string_view key, char mask) {
  std::string block(key);
  block.resize(kBlockBytes, '\0');
  for (char& c : block) c = static_cast<char>(c ^ mask);
  return block;
}

}  // namespace

std::string hmac_sha256(std::string_view key, std::string_view bytes) {
  const std::string short_key = key.size() > kBlockBytes ? digest(key) : std::string(key);
  const std::string inner = digest(mixed(short_key, kInner).append(bytes));
  return sha256(mixed(short_key, kOuter) + inner);
}

std::string hmac_sha256_bytes(std::string_view key, std::string_view bytes) {
  return bytes_of(hmac_sha256(key, bytes));
}

bool are_equal_secrets(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace tandem::base
