// The first words on a connection between machines, before any bytes are read as a message. The end that connects
// speaks first. With a secret, the words are TLS's handshake (mesh/tls_session.h), and the listening end answers only
// an end that knows the secret; without one they are a word of eight letters each. No torch.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "mesh/tls_session.h"

namespace tandem::mesh {

// Takes bytes and gives bytes; it has no socket.
class Handshake {
 public:
  // No more bytes than these are taken from an end that is not known; a handshake has some 500.
  static constexpr size_t kMaxBytes = 8192;

  // `key` is borrowed; it is null if every connection is trusted (--trust-network).
  Handshake(const TlsKey* key, ChannelEnd end);

  // Returns the bytes that this end has to send now, once. After an error they tell the other end of it.
  std::string take_words();
  // Returns how many bytes of the other end it takes now, at most; 0: each end knows the other. With a secret some may
  // belong to what follows the handshake; they are in the session.
  size_t num_wanted() const;
  // Takes at most as many bytes as are wanted. Throws ChannelClosed, which says what is wrong with the other end, and
  // how to mend it.
  void add(std::string_view bytes);

  // Returns the channel's TLS session, once nothing is wanted; null without a secret.
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

// Returns the key of a secret, which it forgets; null for "", where every connection is trusted.
std::unique_ptr<TlsKey> key_of(std::string& secret, ChannelEnd end);

// Moves the words of a handshake over a new connection, as far as that goes without waiting. Returns whether the
// handshake is done. Throws ChannelClosed if the other end has closed or does not belong to this run.
bool continue_handshake(int socket, Handshake& handshake);

}  // namespace tandem::mesh
