#include "mesh/secret.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/files.h"

namespace tandem::mesh {

namespace {

constexpr size_t kMinBytes = 16;
constexpr int64_t kMaxBytes = 1 << 20;

}  // namespace

std::string read_secret(const std::string& path) {
  struct stat facts = {};
  TANDEM_USER_CHECK(stat(path.c_str(), &facts) == 0,
                    fmt::format("TANDEM_SECRET_FILE={}: {}; make it with (umask 077; head -c 32 /dev/urandom > FILE) "
                                "and give all machines the same",
                                path, std::strerror(errno)));
  TANDEM_USER_CHECK((facts.st_mode & (S_IRWXG | S_IRWXO)) == 0,
                    fmt::format("TANDEM_SECRET_FILE={}: others than its owner may read or write it; chmod 600 it, or "
                                "make another one where they have read it",
                                path));
  std::string secret = base::read_file(path, kMaxBytes);
  TANDEM_USER_CHECK(secret.size() >= kMinBytes,
                    fmt::format("TANDEM_SECRET_FILE={}: has {} bytes, and can be guessed; give it {} random ones or "
                                "more: head -c 32 /dev/urandom > FILE",
                                path, secret.size(), kMinBytes));
  return secret;
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
