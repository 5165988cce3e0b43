#include "base/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "base/check.h"

namespace tandem::base {
namespace {

constexpr std::string_view kFingerprint = "sha256:";

}  // namespace

std::string hex_digits(std::string_view bytes) {
  std::string digits;
  digits.reserve(2 * bytes.size());
  for (const char byte : bytes) digits += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return digits;
}

std::string sha256(std::string_view bytes) {
  std::array<char, kSha256Bytes> digest = {};
  TANDEM_ENV_CHECK(EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), nullptr,
                              EVP_sha256(), nullptr) == 1,
                   "OpenSSL computes no SHA-256; look at its configuration (openssl version -d)");
  return hex_digits({digest.data(), digest.size()});
}

std::string fingerprint(std::string_view option, std::string_view value) {
  std::string text(option);
  text += '\0';  // no name contains it
  text += value;
  return std::string(kFingerprint) + sha256(text);
}

bool is_fingerprint(std::string_view text) { return text.starts_with(kFingerprint); }

}  // namespace tandem::base
