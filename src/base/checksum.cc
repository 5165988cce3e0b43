#include "base/checksum.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/files.h"

namespace tandem::base {

namespace {

std::string hex(XXH128_hash_t hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

}  // namespace

std::string checksum(std::string_view bytes) { return hex(XXH3_128bits(bytes.data(), bytes.size())); }

std::string file_checksum(const std::string& path) {
  const ReadableFile file(path);
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  TANDEM_ENV_CHECK(state != nullptr && XXH3_128bits_reset(state.get()) == XXH_OK, path + ": no memory for a checksum");
  std::vector<std::byte> piece(static_cast<size_t>(std::min<int64_t>(file.size(), int64_t{1} << 20)));
  for (int64_t at = 0; at < file.size();) {
    const auto size = static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(piece.size()), file.size() - at));
    file.read_at(at, std::span(piece).first(size));
    XXH3_128bits_update(state.get(), piece.data(), size);
    at += static_cast<int64_t>(size);
  }
  return hex(XXH3_128bits_digest(state.get()));
}

}  // namespace tandem::base
