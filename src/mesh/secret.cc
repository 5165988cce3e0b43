#include "mesh/secret.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <set>

#include "base/check.h"
#include "base/files.h"

namespace tandem::mesh {

namespace {

constexpr size_t kMinBytes = 32;
// 32 random hexadecimal digits have fewer different ones less than once in 10^7 times.
constexpr size_t kMinDifferent = 8;
// A process that pretends to listen for a run gets a proof of the secret, and can test guesses against it offline: a
// secret that a person makes up is found so, random bytes are not.
constexpr const char* kRemedy =
    "make a random one: (umask 077; openssl rand -hex 32 > FILE), the same for all machines";
constexpr int64_t kMaxBytes = 1 << 20;

}  // namespace

std::string read_secret(const std::string& path) {
  struct stat facts = {};
  TANDEM_USER_CHECK(stat(path.c_str(), &facts) == 0,
                    fmt::format("TANDEM_SECRET_FILE={}: {}; {}", path, std::strerror(errno), kRemedy));
  TANDEM_USER_CHECK(!S_ISDIR(facts.st_mode),
                    fmt::format("TANDEM_SECRET_FILE={}: is a directory; name a file in it, or {}", path, kRemedy));
  TANDEM_USER_CHECK((facts.st_mode & (S_IRWXG | S_IRWXO)) == 0,
                    fmt::format("TANDEM_SECRET_FILE={}: others than its owner may read or write it; chmod 600 it, or "
                                "make another one where they have read it",
                                path));
  std::string secret = base::read_file(path, kMaxBytes);
  TANDEM_USER_CHECK(secret.size() >= kMinBytes,
                    fmt::format("TANDEM_SECRET_FILE={}: has {} bytes, and can be guessed; {} are the least: {}", path,
                                secret.size(), kMinBytes, kRemedy));
  const size_t num_different = std::set<char>(secret.begin(), secret.end()).size();
  TANDEM_USER_CHECK(num_different >= kMinDifferent,
                    fmt::format("TANDEM_SECRET_FILE={}: has {} different bytes, and can be guessed; {}", path,
                                num_different, kRemedy));
  return secret;
}

void forget(std::string& secret) {
  OPENSSL_cleanse(secret.data(), secret.size());
  secret.clear();
}

std::string random_digits() {
  std::array<unsigned char, 16> bytes = {};
  TANDEM_ENV_CHECK(getrandom(bytes.data(), bytes.size(), 0) == std::ssize(bytes),
                   "the kernel gives no random numbers (getrandom)");
  std::string digits;
  for (const unsigned char byte : bytes) digits += fmt::format("{:02x}", byte);
  return digits;
}

}  // namespace tandem::mesh
