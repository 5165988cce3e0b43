// Connects to a ChannelListener of another machine (mesh/channel_listener.h). No torch.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "mesh/channel.h"
#include "mesh/handshake.h"

namespace tandem::mesh {

// Thrown when nobody listens at an address, or its machine does not answer within kConnectsWithin.
class NobodyListens : public ChannelClosed {
 public:
  using ChannelClosed::ChannelClosed;
};

// A connection that is being made. It never waits, however long the other end is busy.
class ChannelConnector {
 public:
  // Begins to connect. `patience_s` is the timeout of the first words and of the channel.
  ChannelConnector(const std::string& address, int port, std::string secret, double patience_s);

  // Does what can be done now. Returns the channel once each end knows the other, and null until then; the connector is
  // of no use after that, or after an error. Throws NobodyListens; ChannelClosed if the listener does not belong to
  // this run, or if it did not answer within `patience_s`: its process is frozen then, or has been busy for as long.
  std::unique_ptr<Channel> advance();
  // Poll this: advance() has something to do when it is there.
  pollfd awaited() const;

 private:
  const double patience_s_;
  const std::unique_ptr<TlsKey> key_;  // null: every connection is trusted
  std::optional<OwnedDescriptor> socket_;
  Handshake handshake_;
  const base::Clock::time_point begin_ = base::Clock::now();
  bool is_connected_ = false;  // the other machine has answered
};

// Waits for the channel of a ChannelConnector; returns null if nobody listens there.
std::unique_ptr<Channel> connect_channel(const std::string& address, int port, std::string secret, double patience_s);

}  // namespace tandem::mesh
