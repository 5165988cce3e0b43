#include "mesh/handshake.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "mesh/channel.h"
#include "mesh/secret.h"

namespace tandem::mesh {

namespace {

// These are the words without a secret. The listening end's word says whether it has one, so that both can name what is
// wrong; it differs from the connecting end's, so an echo is no answer.
constexpr std::string_view kConnects = "TDM2OPEN", kHasNoSecret = "TDM2HERE", kHasSecret = "TDM2SEAL";
static_assert(kConnects.size() == kHasNoSecret.size() && kConnects.size() == kHasSecret.size());

// Tells the first byte of a TLS record that begins a handshake or ends it: its content type (RFC 8446, 5.1).
bool begins_tls(char byte) { return byte == '\x16' || byte == '\x15'; }

[[noreturn]] void refuse_stranger() {
  throw ChannelClosed("the other end is no process of this program, or of another build; look whose port that is");
}

[[noreturn]] void refuse_mixed(bool has_secret) {
  throw SecretDiffers(
      fmt::format("the other end was started with{} TANDEM_SECRET_FILE, this one with{}; set it for all",
                  has_secret ? "out" : "", has_secret ? "" : "out"));
}

void say(int socket, Handshake& handshake) {
  const std::string words = handshake.take_words();
  // A new connection takes a few bytes at once.
  if (!words.empty() && send(socket, words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT) != std::ssize(words))
    throw ChannelClosed("the other process is gone");
}

// A socket that is closed with unread bytes in it may lose the bytes that were sent last.
void throw_away_rest(int socket) {
  std::array<char, Handshake::kMaxBytes> ignored;
  recv(socket, ignored.data(), ignored.size(), MSG_DONTWAIT);
}

}  // namespace

Handshake::Handshake(const TlsKey* key, ChannelEnd end) : key_(key), end_(end) {
  TANDEM_CHECK(key_ == nullptr || key_->end() == end_);
  if (end_ == ChannelEnd::kListens) return;
  if (key_ == nullptr) {
    to_send_ = kConnects;
  } else {
    session_ = std::make_unique<TlsSession>(*key_);
    session_->shake_hands();
  }
}

std::string Handshake::take_words() {
  std::string words = std::exchange(to_send_, "");
  if (session_) words += session_->take_words();
  return words;
}

size_t Handshake::num_wanted() const {
  switch (state_) {
    case State::kWaitsForFirstWord: return kConnects.size() - first_word_.size();
    case State::kShakesHands: return kMaxBytes - num_heard_;
    case State::kDone: break;
  }
  return 0;
}

void Handshake::add(std::string_view bytes) {
  TANDEM_CHECK(bytes.size() <= num_wanted());
  num_heard_ += bytes.size();
  if (state_ == State::kShakesHands) return shake_hands(bytes);
  first_word_ += bytes;
  if (!first_word_.empty()) read_first_word();
}

void Handshake::read_first_word() {
  const bool listens = end_ == ChannelEnd::kListens;
  if (begins_tls(first_word_[0])) {
    if (key_ == nullptr && !listens) refuse_stranger();
    if (key_ == nullptr) {
      to_send_ = kHasNoSecret;
      refuse_mixed(/*has_secret=*/false);
    }
    if (!session_) session_ = std::make_unique<TlsSession>(*key_);
    state_ = State::kShakesHands;
    return shake_hands(first_word_);
  }
  // Bytes that are no word of ours are known by their beginning, however few have come.
  const auto may_become = [&](std::string_view word) { return word.starts_with(first_word_); };
  if (listens ? !may_become(kConnects) : !may_become(kHasNoSecret) && !may_become(kHasSecret)) refuse_stranger();
  if (first_word_.size() < kConnects.size()) return;
  const bool they_have_one = listens ? false : first_word_ == kHasSecret;
  if (listens) to_send_ = key_ == nullptr ? kHasNoSecret : kHasSecret;
  if (they_have_one != (key_ != nullptr)) refuse_mixed(key_ != nullptr);
  if (they_have_one) refuse_stranger();  // it was spoken to by TLS, and answers with a word
  state_ = State::kDone;
}

void Handshake::shake_hands(std::string_view heard) {
  session_->add(heard);
  if (session_->shake_hands()) {
    state_ = State::kDone;
  } else if (num_heard_ >= kMaxBytes) {
    refuse_stranger();
  }
}

std::unique_ptr<TlsKey> key_of(std::string& secret, ChannelEnd end) {
  if (secret.empty()) return nullptr;
  auto key = std::make_unique<TlsKey>(secret, end);
  forget(secret);
  return key;
}

bool continue_handshake(int socket, Handshake& handshake) {
  std::array<char, Handshake::kMaxBytes> buffer;
  say(socket, handshake);
  while (handshake.num_wanted() > 0) {
    const size_t wanted = std::min(handshake.num_wanted(), buffer.size());
    const ssize_t received = recv(socket, buffer.data(), wanted, MSG_DONTWAIT);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (received <= 0) throw ChannelClosed("the other process is gone");
    try {
      handshake.add({buffer.data(), static_cast<size_t>(received)});
    } catch (const ChannelClosed&) {
      say(socket, handshake);  // it is told why, as far as an unknown end is told
      throw_away_rest(socket);
      throw;
    }
    say(socket, handshake);
  }
  return true;
}

}  // namespace tandem::mesh
