#include "mesh/channel_listener.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <utility>

#include "base/log.h"

namespace tandem::mesh {

ChannelListener::ChannelListener(const std::string& local_name, NetworkDoor door, double patience_s,
                                 const std::string& remedy, const std::string& shown)
    : door_(std::move(door)),
      patience_s_(patience_s),
      key_(key_of(door_.secret, ChannelEnd::kListens)),
      local_(local_name, remedy, shown) {
  if (door_.address.empty()) return;
  network_ = listen_at(door_.address, door_.port, {.port = door_.flag, .address = door_.flag});
  fcntl(network_->get(), F_SETFL, O_NONBLOCK);
}

std::unique_ptr<Channel> ChannelListener::accept() {
  if (std::optional<OwnedDescriptor> socket = local_.accept())
    return std::make_unique<Channel>(std::move(*socket), patience_s_);
  if (!network_) return nullptr;
  let_strangers_in();
  for (auto it = strangers_.begin(); it != strangers_.end();) {
    Stranger& stranger = *it;
    std::unique_ptr<Channel> channel;
    try {
      const bool is_known = hear(stranger);
      if (!is_known && base::seconds_since(stranger.since) < door_.stranger_patience_s) {
        ++it;
        continue;
      }
      if (!is_known) throw ChannelClosed(fmt::format("it said nothing for {:g} s", door_.stranger_patience_s));
      watch_connection(stranger.socket, patience_s_);
      channel = std::make_unique<Channel>(std::move(stranger.socket), patience_s_, kMaxFrameBytes,
                                          stranger.handshake.take_session());
    } catch (const ChannelClosed& error) {
      say_turned_away(stranger, error.what());
    }
    it = strangers_.erase(it);
    if (channel) return channel;
  }
  return nullptr;
}

void ChannelListener::let_strangers_in() {
  std::string address;
  while (std::optional<OwnedDescriptor> socket = accept_from(*network_, &address)) {
    strangers_.push_back({.socket = std::move(*socket),
                          .address = address,
                          .handshake = Handshake(key_.get(), ChannelEnd::kListens),
                          .since = base::Clock::now()});
    if (strangers_.size() > door_.max_strangers) strangers_.pop_front();
  }
}

bool ChannelListener::hear(Stranger& stranger) { return continue_handshake(stranger.socket.get(), stranger.handshake); }

// This is logged once: anybody who reaches the port could otherwise fill the log.
void ChannelListener::say_turned_away(const Stranger& stranger, const std::string& why) {
  if (std::exchange(has_said_turned_away_, true)) return;
  base::log_warning("{} has connected to {}:{} and is turned away: {}; others will be without a word", stranger.address,
                    door_.address, port(), why);
}

std::vector<int> ChannelListener::descriptors() const {
  std::vector<int> result = {local_.descriptor()};
  if (network_) result.push_back(network_->get());
  for (const Stranger& stranger : strangers_) result.push_back(stranger.socket.get());
  return result;
}

}  // namespace tandem::mesh
