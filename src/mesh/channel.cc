#include "mesh/channel.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"

namespace tandem::mesh {

namespace {

constexpr std::string_view kMagic = "TDM1";
constexpr size_t kChecksumBytes = 32;
constexpr size_t kHeaderBytes = kMagic.size() + sizeof(uint64_t) + kChecksumBytes;

// The address of a name; a leading zero byte says that it is no file.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  TANDEM_CHECK(name.size() + 1 < sizeof address.sun_path, "the name of a local socket is too long:", name);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

OwnedDescriptor local_socket(int flags) {
  OwnedDescriptor result(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  TANDEM_ENV_CHECK(result.get() >= 0, fmt::format("cannot open a socket: {}", std::strerror(errno)));
  return result;
}

bool is_own_users(int socket) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

int milliseconds(double seconds) { return static_cast<int>(std::min(seconds * 1000.0, 1e9)); }

}  // namespace

std::string frame_of(std::string_view payload) {
  const auto size = static_cast<uint64_t>(payload.size());
  std::string frame(kMagic);
  frame.append(reinterpret_cast<const char*>(&size), sizeof size);
  frame += base::checksum(payload);
  frame += payload;
  return frame;
}

std::optional<std::string> FrameReader::next() {
  const size_t seen = std::min(bytes_.size(), kMagic.size());
  if (std::string_view(bytes_).substr(0, seen) != kMagic.substr(0, seen))
    throw ChannelClosed("the other process does not send what this program's would: start all with the same build");
  if (bytes_.size() < kHeaderBytes) return std::nullopt;
  uint64_t size = 0;
  std::memcpy(&size, bytes_.data() + kMagic.size(), sizeof size);
  if (size > max_bytes_) throw ChannelClosed(fmt::format("a message of {} bytes is longer than any should be", size));
  if (bytes_.size() - kHeaderBytes < size) return std::nullopt;
  std::string payload = bytes_.substr(kHeaderBytes, size);
  if (std::string_view(bytes_).substr(kHeaderBytes - kChecksumBytes, kChecksumBytes) != base::checksum(payload))
    throw ChannelClosed("a message has changed on its way: its checksum is another");
  bytes_.erase(0, kHeaderBytes + size);
  return payload;
}

size_t FrameReader::take(std::span<std::byte> into) {
  const size_t size = std::min(into.size(), bytes_.size());
  if (size == 0) return 0;
  std::memcpy(into.data(), bytes_.data(), size);
  bytes_.erase(0, size);
  return size;
}

Channel::Channel(OwnedDescriptor socket, double patience_s, size_t max_frame_bytes)
    : socket_(std::move(socket)), patience_s_(patience_s), reader_(max_frame_bytes) {
  fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
}

void Channel::wait(int16_t events) {
  pollfd polled = {socket_.get(), events, 0};
  const base::Clock::time_point begin = base::Clock::now();
  while (poll(&polled, 1, milliseconds(std::max(patience_s_ - base::seconds_since(begin), 0.0))) <= 0) {
    if (base::seconds_since(begin) >= patience_s_)
      throw ChannelClosed(fmt::format("nothing has moved for {:g} seconds", patience_s_));
  }
}

void Channel::send(std::string_view payload) {
  const std::string frame = frame_of(payload);
  send_bytes({reinterpret_cast<const std::byte*>(frame.data()), frame.size()});
}

void Channel::send_bytes(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      wait(POLLOUT | POLLIN);
      read_some(0.0);  // both ends may have much to say at one time
    } else if (errno != EINTR) {
      throw ChannelClosed("the other process is gone");
    }
  }
}

// False: nothing has come.
bool Channel::read_some(double wait_s) {
  std::array<char, 65536> buffer;
  pollfd polled = {socket_.get(), POLLIN, 0};
  if (poll(&polled, 1, milliseconds(wait_s)) <= 0) return false;
  const ssize_t received = read(socket_.get(), buffer.data(), buffer.size());
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (received <= 0) throw ChannelClosed("the other process is gone");
  reader_.add({buffer.data(), static_cast<size_t>(received)});
  return true;
}

std::optional<std::string> Channel::receive(double wait_s) {
  const base::Clock::time_point begin = base::Clock::now();
  while (true) {
    if (std::optional<std::string> frame = reader_.next()) return frame;
    if (!read_some(std::max(wait_s - base::seconds_since(begin), 0.0)) && base::seconds_since(begin) >= wait_s)
      return std::nullopt;
  }
}

void Channel::receive_bytes(std::span<std::byte> into) {
  into = into.subspan(reader_.take(into));
  while (!into.empty()) {
    const ssize_t received = read(socket_.get(), into.data(), into.size());
    if (received > 0) {
      into = into.subspan(static_cast<size_t>(received));
    } else if (received < 0 && errno == EAGAIN) {
      wait(POLLIN);
    } else if (received == 0 || errno != EINTR) {
      throw ChannelClosed("the other process is gone");
    }
  }
}

OwnedDescriptor listen_locally(const std::string& name) {
  OwnedDescriptor result = local_socket(SOCK_NONBLOCK);
  const auto [address, size] = address_of(name);
  TANDEM_ENV_CHECK(
      bind(result.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
          listen(result.get(), SOMAXCONN) == 0,
      fmt::format("cannot listen for processes that sample: {}; does the run go on already?", std::strerror(errno)));
  return result;
}

std::optional<OwnedDescriptor> accept_locally(const OwnedDescriptor& listener) {
  while (true) {
    OwnedDescriptor peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (peer.get() < 0) return std::nullopt;
    if (is_own_users(peer.get())) return peer;
  }
}

std::optional<OwnedDescriptor> connect_locally(const std::string& name) {
  OwnedDescriptor result = local_socket(0);
  const auto [address, size] = address_of(name);
  if (connect(result.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) return std::nullopt;
  TANDEM_ENV_CHECK(is_own_users(result.get()), "another user's process listens where the run should");
  return result;
}

}  // namespace tandem::mesh
