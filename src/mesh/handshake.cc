#include "mesh/handshake.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "mesh/channel.h"
#include "mesh/secret.h"

namespace tandem::mesh {

namespace {

constexpr std::string_view kSealed = "TDMCHAN1", kPlain = "TDMOPEN1";  // whether the end has a secret
constexpr size_t kDigits = 32, kProofDigits = 32;
constexpr std::string_view kProof = "this end knows the secret";

}  // namespace

Handshake::Handshake(std::string secret, ChannelEnd end)
    : secret_(std::move(secret)), end_(end), digits_(random_digits()) {
  static_assert(kSealed.size() == kPlain.size());
  to_send_ = fmt::format("{}{}", secret_.empty() ? kPlain : kSealed, digits_);
}

std::string Handshake::take_words() { return std::exchange(to_send_, ""); }

size_t Handshake::num_wanted() const {
  switch (state_) {
    case State::kWaitsForDigits: return kSealed.size() + kDigits - heard_.size();
    case State::kWaitsForProof: return kProofDigits - heard_.size();
    case State::kDone: break;
  }
  return 0;
}

void Handshake::add(std::string_view bytes) {
  TANDEM_CHECK(bytes.size() <= num_wanted());
  heard_ += bytes;
  if (state_ == State::kWaitsForDigits) {
    // What is no word of ours is known by its beginning, however little has come.
    const std::string_view begin = std::string_view(heard_).substr(0, kSealed.size());
    if (!kSealed.starts_with(begin) && !kPlain.starts_with(begin))
      throw ChannelClosed("the other end is no process of this program, or of another build; look whose port that is");
  }
  if (num_wanted() > 0) return;
  state_ == State::kWaitsForDigits ? read_digits() : read_proof();
  heard_.clear();
}

void Handshake::read_digits() {
  const bool has_secret = heard_.starts_with(kSealed);
  if (has_secret == secret_.empty()) {
    throw ChannelClosed(
        fmt::format("the other end was started with{} TANDEM_SECRET_FILE, this one with{}; set it for all",
                    has_secret ? "" : "out", has_secret ? "out" : ""));
  }
  const std::string theirs = heard_.substr(kSealed.size());
  if (theirs == digits_) throw ChannelClosed("what this end says is sent back to it; look whose port that is");
  if (!has_secret) {
    state_ = State::kDone;
    return;
  }
  const bool listens = end_ == ChannelEnd::kListens;
  seal_ = std::make_unique<ChannelSeal>(
      secret_, end_,
      ChannelSeal::Digits{.of_listening = listens ? digits_ : theirs, .of_connecting = listens ? theirs : digits_});
  to_send_ += seal_->tag_of(ChannelSeal::Kind::kProof, kProof);
  state_ = State::kWaitsForProof;
}

void Handshake::read_proof() {
  if (!seal_->is_tag_of(ChannelSeal::Kind::kProof, kProof, heard_))
    throw ChannelClosed("TANDEM_SECRET_FILE: the other end has another secret; give all the same file");
  state_ = State::kDone;
}

}  // namespace tandem::mesh
