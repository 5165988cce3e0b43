#include "base/hmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/check.h"
#include "base/sha256.h"

namespace tandem::base {

std::string hmac_sha256_bytes(std::string_view key, std::string_view bytes) {
  std::string code(kSha256Bytes, '\0');
  TANDEM_ENV_CHECK(
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(bytes.data()),
           bytes.size(), reinterpret_cast<unsigned char*>(code.data()), nullptr) != nullptr,
      "OpenSSL computes no HMAC; look at its configuration (openssl version -d)");
  return code;
}

std::string hmac_sha256(std::string_view key, std::string_view bytes) {
  return hex_digits(hmac_sha256_bytes(key, bytes));
}

bool are_equal_secrets(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace tandem::base
