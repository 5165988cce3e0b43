// The first words on a connection between machines, before anything that is said is read as a message. The end that
// connects speaks first. Where there is a secret, the words are TLS's handshake (mesh/tls_session.h), and the listening
// end answers only to who knows the secret; else they are a word of eight letters each. Bytes in and bytes out; no
// sockets. No torch.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "mesh/tls_session.h"

namespace tandem::mesh {

class Handshake {
 public:
  // All that is taken of an end that is not known; a handshake is some 500 bytes.
  static constexpr size_t kMaxBytes = 8192;

  // `key`: borrowed; null where whoever comes is trusted (--trust-network).
  Handshake(const TlsKey* key, ChannelEnd end);

  // What this end has to send now; given once. After an error: what tells the other end of it.
  std::string take_words();
  // How many bytes of the other end it takes now, at most; 0: each end knows the other. With a secret some may belong
  // to what follows the handshake; they are in the session.
  size_t num_wanted() const;
  // At most as many as are wanted. ChannelClosed says what is wrong with the other end, and what mends it.
  void add(std::string_view bytes);

  // What the channel is secured with, once nothing is wanted; null without a secret.
  std::unique_ptr<TlsSession> take_session() { return std::move(session_); }

 private:
  enum class State : uint8_t { kWaitsForFirstWord, kShakesHands, kDone };
  void read_first_word();
  void shake_hands(std::string_view heard);

  const TlsKey* const key_;
  const ChannelEnd end_;
  State state_ = State::kWaitsForFirstWord;
  std::string to_send_, first_word_;
  size_t num_heard_ = 0;
  std::unique_ptr<TlsSession> session_;
};

}  // namespace tandem::mesh
