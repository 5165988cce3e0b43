#include "mesh/channel_connector.h"

#include <fmt/format.h>

#include <utility>

#include "mesh/network.h"

namespace tandem::mesh {

namespace {

constexpr int kLookEveryMs = 200;

}  // namespace

ChannelConnector::ChannelConnector(const std::string& address, int port, std::string secret, double patience_s)
    : patience_s_(patience_s),
      key_(key_of(secret, ChannelEnd::kConnects)),
      socket_(begin_to_connect(address, port)),
      handshake_(key_.get(), ChannelEnd::kConnects) {}

std::unique_ptr<Channel> ChannelConnector::advance() {
  if (!socket_) throw NobodyListens("nobody listens there");
  if (!is_connected_) {
    const std::optional<bool> is_made = is_connected(*socket_);
    if (!is_made && base::seconds_since(begin_) < kConnectsWithin) return nullptr;
    if (!is_made.value_or(false)) throw NobodyListens("nobody listens there");
    is_connected_ = true;
    watch_connection(*socket_, patience_s_);
  }
  if (continue_handshake(socket_->get(), handshake_))
    return std::make_unique<Channel>(std::move(*socket_), patience_s_, kMaxFrameBytes, handshake_.take_session());
  if (base::seconds_since(begin_) >= patience_s_)
    throw ChannelClosed(
        fmt::format("it has not answered within {:g} s (--distributed-timeout-minutes): the process that listens "
                    "there is stopped or frozen, or is no run; look whose port that is",
                    patience_s_));
  return nullptr;
}

pollfd ChannelConnector::awaited() const {
  const int16_t events = is_connected_ ? POLLIN : POLLOUT;
  return {socket_ ? socket_->get() : -1, events, 0};
}

std::unique_ptr<Channel> connect_channel(const std::string& address, int port, std::string secret, double patience_s) {
  ChannelConnector connector(address, port, std::move(secret), patience_s);
  while (true) {
    try {
      if (std::unique_ptr<Channel> channel = connector.advance()) return channel;
    } catch (const NobodyListens&) {
      return nullptr;
    }
    pollfd awaited = connector.awaited();
    poll(&awaited, 1, kLookEveryMs);
  }
}

}  // namespace tandem::mesh
