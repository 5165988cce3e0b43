#include "mesh/sealed_store.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/hmac.h"

namespace tandem::mesh {

namespace {

constexpr std::string_view kMark = "sealed:";
constexpr size_t kSealDigits = 64;

}  // namespace

SealedStore::SealedStore(c10::intrusive_ptr<c10d::Store> store, std::string secret, std::string run)
    : store_(std::move(store)), secret_(std::move(secret)), run_(std::move(run)) {
  TANDEM_CHECK(!secret_.empty());
}

c10::intrusive_ptr<c10d::Store> SealedStore::clone() {
  return c10::make_intrusive<SealedStore>(store_->clone(), secret_, run_);
}

// The lengths say where one text ends and the next begins.
std::string SealedStore::seal_of(const std::string& key, const std::string& value) const {
  return base::hmac_sha256(
      secret_, fmt::format("tandem store\n{} {} {}\n{}{}{}", run_.size(), key.size(), value.size(), run_, key, value));
}

void SealedStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  const std::string text(value.begin(), value.end());
  store_->set(key, fmt::format("{}{}{}", kMark, seal_of(key, text), text));
}

std::vector<uint8_t> SealedStore::get(const std::string& key) {
  const std::string sealed = store_->get_to_str(key);
  const bool has_seal = looks_sealed(sealed);
  const std::string seal = has_seal ? sealed.substr(kMark.size(), kSealDigits) : "";
  const std::string value = has_seal ? sealed.substr(kMark.size() + kSealDigits) : "";
  if (!has_seal || !base::are_equal_secrets(seal, seal_of(key, value)))
    throw ForeignValue(
        fmt::format("TANDEM_SECRET_FILE: '{}' of the ranks' store was not written with this rank's secret; give all "
                    "ranks the same file, and look who else is on the network",
                    key));
  return {value.begin(), value.end()};
}

bool looks_sealed(const std::string& value) {
  return value.size() >= kMark.size() + kSealDigits && value.starts_with(kMark);
}

}  // namespace tandem::mesh
