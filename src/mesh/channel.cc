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
constexpr size_t kTagDigits = 32;  // of a seal, where a frame has its checksum
static_assert(kTagDigits == kChecksumBytes);
constexpr const char* kNotNext = "what has come is not what the other end said next: somebody else is on the network";
constexpr size_t kStretchBytes = size_t{1} << 20;  // of bytes that have a tag of their own
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

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

[[noreturn]] void end_of_connection(int error) {
  const bool is_silent = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
  throw ChannelClosed(is_silent ? "its machine says nothing any more" : "the other process is gone");
}

int milliseconds(double seconds) { return static_cast<int>(std::min(seconds * 1000.0, 1e9)); }

}  // namespace

std::string frame_of(std::string_view payload, ChannelSeal* seal) {
  const auto size = static_cast<uint64_t>(payload.size());
  std::string frame(kMagic);
  frame.append(reinterpret_cast<const char*>(&size), sizeof size);
  frame += seal == nullptr ? base::checksum(payload) : seal->tag_of(ChannelSeal::Kind::kFrame, payload);
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
  const std::string_view checksum = std::string_view(bytes_).substr(kHeaderBytes - kChecksumBytes, kChecksumBytes);
  if (seal_ != nullptr && !seal_->is_tag_of(ChannelSeal::Kind::kFrame, payload, checksum))
    throw ChannelClosed(kNotNext);
  if (seal_ == nullptr && checksum != base::checksum(payload))
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

Channel::Channel(OwnedDescriptor socket, double patience_s, size_t max_frame_bytes, std::unique_ptr<ChannelSeal> seal)
    : socket_(std::move(socket)),
      patience_s_(patience_s),
      seal_(std::move(seal)),
      reader_(max_frame_bytes, seal_.get()) {
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
  const std::string frame = frame_of(payload, seal_.get());
  write_all(bytes_of(frame));
}

void Channel::wait_until_closed(double wait_s) {
  std::array<char, 65536> ignored;
  const base::Clock::time_point begin = base::Clock::now();
  for (double left = wait_s; left > 0.0; left = wait_s - base::seconds_since(begin)) {
    pollfd polled = {socket_.get(), POLLIN, 0};
    if (poll(&polled, 1, milliseconds(left)) <= 0) continue;
    const ssize_t received = read(socket_.get(), ignored.data(), ignored.size());
    if (received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR)) return;
  }
}

void Channel::send_bytes(std::span<const std::byte> bytes) {
  if (!seal_) return write_all(bytes);
  while (!bytes.empty()) {
    const auto stretch = bytes.first(std::min(bytes.size(), kStretchBytes));
    const auto size = static_cast<uint64_t>(stretch.size());
    write_all(std::as_bytes(std::span(&size, 1)));
    write_all(stretch);
    write_all(bytes_of(seal_->tag_of(ChannelSeal::Kind::kBytes, text_of(stretch))));
    bytes = bytes.subspan(stretch.size());
  }
}

void Channel::write_all(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      wait(POLLOUT | POLLIN);
      read_some(0.0);  // both ends may have much to say at one time
    } else if (errno != EINTR) {
      end_of_connection(errno);
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
  if (received <= 0) end_of_connection(received < 0 ? errno : 0);
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
  if (!seal_) return read_all(into);
  while (!into.empty()) {
    if (num_taken_ == stretch_.size()) {
      uint64_t size = 0;
      read_all(std::as_writable_bytes(std::span(&size, 1)));
      if (size == 0 || size > kStretchBytes) throw ChannelClosed(kNotNext);
      if (size <= into.size()) {
        read_stretch(into.first(size));
        into = into.subspan(size);
        continue;
      }
      stretch_.resize(size);
      num_taken_ = 0;
      read_stretch(stretch_);
    }
    const auto left = std::span(stretch_).subspan(num_taken_);
    const size_t count = std::min(into.size(), left.size());
    std::memcpy(into.data(), left.data(), count);
    num_taken_ += count;
    into = into.subspan(count);
  }
}

void Channel::read_stretch(std::span<std::byte> into) {
  read_all(into);
  std::string tag(kTagDigits, '\0');
  read_all(std::as_writable_bytes(std::span(tag)));
  if (!seal_->is_tag_of(ChannelSeal::Kind::kBytes, text_of(into), tag)) throw ChannelClosed(kNotNext);
}

void Channel::read_all(std::span<std::byte> into) {
  into = into.subspan(reader_.take(into));
  while (!into.empty()) {
    const ssize_t received = read(socket_.get(), into.data(), into.size());
    if (received > 0) {
      into = into.subspan(static_cast<size_t>(received));
    } else if (received < 0 && errno == EAGAIN) {
      wait(POLLIN);
    } else if (received == 0 || errno != EINTR) {
      end_of_connection(received < 0 ? errno : 0);
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
