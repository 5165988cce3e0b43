#include "mesh/channel.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bell.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"

namespace tandem::mesh {

namespace {

constexpr std::string_view kMagic = "TDM1";
constexpr size_t kChecksumBytes = 32;
constexpr size_t kHeaderBytes = kMagic.size() + sizeof(uint64_t) + kChecksumBytes;
constexpr size_t kTlsBytes = size_t{256} << 10;  // bytes encrypted or decrypted at a time; fits in a core's cache

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

[[noreturn]] void end_of_connection(int error, bool is_cut) {
  const bool is_silent = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
  throw ChannelClosed(is_silent ? "its machine says nothing any more"
                      : is_cut  ? "the other process is gone, or somebody has cut the connection"
                                : "the other process is gone");
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
  const std::string_view checksum = std::string_view(bytes_).substr(kHeaderBytes - kChecksumBytes, kChecksumBytes);
  if (checksum != base::checksum(payload))
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

Channel::Channel(OwnedDescriptor socket, double patience_s, size_t max_frame_bytes, std::unique_ptr<TlsSession> tls)
    : socket_(std::move(socket)), patience_s_(patience_s), tls_(std::move(tls)), reader_(max_frame_bytes) {
  fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
}

Channel::~Channel() {
  if (!tls_ || is_in_record_ || has_rest()) return;
  tls_->close();
  const std::string words = tls_->take_words();
  [[maybe_unused]] const ssize_t sent = ::send(socket_.get(), words.data(), words.size(), MSG_NOSIGNAL);
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
  write_all(bytes_of(frame));
}

void Channel::send_without_waiting(std::string_view payload) {
  const std::string frame = frame_of(payload);
  if (tls_) {
    tls_->write(bytes_of(frame));
    rest_ += tls_->take_words();
  } else {
    rest_ += frame;
  }
  send_rest();
}

bool Channel::send_rest() {
  while (has_rest()) {
    const ssize_t sent = ::send(socket_.get(), rest_.data(), rest_.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      rest_.erase(0, static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      return false;
    } else if (errno != EINTR) {
      end_of_connection(errno, tls_ != nullptr);
    }
  }
  return true;
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

void Channel::send_bytes(std::span<const std::byte> bytes) { write_all(bytes); }

void Channel::write_all(std::span<const std::byte> bytes) {
  while (!send_rest()) wait_to_write();
  if (!tls_) return write_to_socket(bytes);
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), kTlsBytes));
    tls_->write(part);
    const std::string words = tls_->take_words();
    is_in_record_ = true;
    write_to_socket(bytes_of(words));
    is_in_record_ = false;
    bytes = bytes.subspan(part.size());
  }
}

// Both ends may have much to send at one time.
void Channel::wait_to_write() {
  wait(POLLOUT | POLLIN);
  read_some();
}

void Channel::write_to_socket(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      wait_to_write();
    } else if (errno != EINTR) {
      end_of_connection(errno, tls_ != nullptr);
    }
  }
}

// Reads the bytes that are there already; nullopt: none.
std::optional<size_t> Channel::read_now(std::span<std::byte> into) {
  if (!tls_) return read_from_socket(into);
  while (true) {
    if (const size_t count = tls_->read(into); count > 0) return count;
    encrypted_.resize(kTlsBytes);
    const std::optional<size_t> received = read_from_socket(std::as_writable_bytes(std::span(encrypted_)));
    if (!received) return std::nullopt;
    tls_->add(std::string_view(encrypted_).substr(0, *received));
  }
}

std::optional<size_t> Channel::read_from_socket(std::span<std::byte> into) {
  const ssize_t received = read(socket_.get(), into.data(), into.size());
  if (received > 0) return static_cast<size_t>(received);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  end_of_connection(received < 0 ? errno : 0, tls_ != nullptr);
}

// Reads what has come. Returns false if there is nothing.
bool Channel::read_some() {
  std::array<std::byte, 65536> buffer;
  const std::optional<size_t> received = read_now(buffer);
  if (received) reader_.add(text_of(std::span(buffer).first(*received)));
  may_have_more_ = received.has_value();
  return may_have_more_;
}

std::optional<std::string> Channel::receive(double wait_s, std::span<const int> news) {
  const base::Clock::time_point begin = base::Clock::now();
  std::vector<int> descriptors(news.begin(), news.end());
  descriptors.push_back(socket_.get());
  bool may_wait = true;
  while (true) {
    if (std::optional<std::string> frame = reader_.next()) return frame;
    if (read_some()) continue;
    const double left_s = wait_s - base::seconds_since(begin);
    if (left_s <= 0.0 || !may_wait) return std::nullopt;
    base::wait_readable(descriptors, left_s);
    may_wait = news.empty();  // with news, what has come is looked at once more
  }
}

void Channel::receive_bytes(std::span<std::byte> into) {
  may_have_more_ = true;
  into = into.subspan(reader_.take(into));
  while (!into.empty()) {
    if (const std::optional<size_t> received = read_now(into)) {
      into = into.subspan(*received);
    } else {
      wait(POLLIN);
    }
  }
}

}  // namespace tandem::mesh
