#include "mesh/channel_listener.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "mesh/secret.h"

namespace tandem::mesh {

namespace {

constexpr int kLookEveryMs = 200;

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

// Takes the bytes that have come, without waiting. Returns whether the handshake is done.
bool go_on(int socket, Handshake& handshake) {
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

std::unique_ptr<TlsKey> key_of(std::string& secret, ChannelEnd end) {
  if (secret.empty()) return nullptr;
  auto key = std::make_unique<TlsKey>(secret, end);
  forget(secret);
  return key;
}

}  // namespace

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

bool ChannelListener::hear(Stranger& stranger) { return go_on(stranger.socket.get(), stranger.handshake); }

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

std::unique_ptr<Channel> connect_channel(const std::string& address, int port, std::string secret, double patience_s) {
  std::optional<OwnedDescriptor> socket = connect_to(address, port);
  if (!socket) {
    forget(secret);
    return nullptr;
  }
  watch_connection(*socket, patience_s);
  const std::unique_ptr<TlsKey> key = key_of(secret, ChannelEnd::kConnects);
  Handshake handshake(key.get(), ChannelEnd::kConnects);
  const base::Clock::time_point begin = base::Clock::now();
  while (!go_on(socket->get(), handshake)) {
    if (base::seconds_since(begin) >= patience_s)
      throw ChannelClosed(
          fmt::format("it has not answered within {:g} s (--distributed-timeout-minutes): the process that listens "
                      "there is stopped or frozen, or is no run; look whose port that is",
                      patience_s));
    pollfd polled = {socket->get(), POLLIN, 0};
    poll(&polled, 1, kLookEveryMs);
  }
  return std::make_unique<Channel>(std::move(*socket), patience_s, kMaxFrameBytes, handshake.take_session());
}

}  // namespace tandem::mesh
