// The first words on a connection between machines, before anything that is said is read as a message: each end sends
// random digits, and, where there is a secret, the proof that it knows it. They are few and have a length that is known
// before. Bytes in and bytes out; no sockets. No torch.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "mesh/channel_seal.h"

namespace tandem::mesh {

class Handshake {
 public:
  // `secret`: empty where whoever comes is trusted (--trust-network).
  Handshake(std::string secret, ChannelEnd end);

  // What this end has to send now; given once.
  std::string take_words();
  // How many bytes of the other end it waits for; 0: each end knows the other.
  size_t num_wanted() const;
  // At most as many as are wanted. ChannelClosed says what is wrong with the other end, and what mends it.
  void add(std::string_view bytes);

  // What the channel is sealed with, once nothing is wanted; null without a secret.
  std::unique_ptr<ChannelSeal> take_seal() { return std::move(seal_); }

 private:
  enum class State : uint8_t { kWaitsForDigits, kWaitsForProof, kDone };
  void read_digits();
  void read_proof();

  const std::string secret_;
  const ChannelEnd end_;
  const std::string digits_;
  State state_ = State::kWaitsForDigits;
  std::string to_send_, heard_;
  std::unique_ptr<ChannelSeal> seal_;
};

}  // namespace tandem::mesh
