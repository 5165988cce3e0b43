// Moves frames over a stream socket between two processes of one run: a length, a checksum and bytes. Received bytes
// are not trusted: a length above the bound, or bytes that do not match their checksum, end the channel with an error.
// Between machines everything goes through TLS where there is a secret (mesh/tls_session.h), so only the other end can
// have written a length that is believed. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "mesh/network.h"
#include "mesh/tls_session.h"
#include "tandem/error.h"

namespace tandem::mesh {

// Thrown when the other end has closed, does not move within the timeout, or sends bytes that are no frame.
class ChannelClosed : public EnvironmentError {
 public:
  using EnvironmentError::EnvironmentError;
};

// Thrown in a handshake when the two ends have other secrets, or one has none: no further try mends it.
class SecretDiffers : public ChannelClosed {
 public:
  using ChannelClosed::ChannelClosed;
};

// Holds a stream socket to another process of the run, and what secures it.
struct Connection {
  OwnedDescriptor socket;
  // The session's handshake is done. It is null on one machine, where the kernel says who is there, and where the
  // network is trusted.
  std::unique_ptr<TlsSession> tls = nullptr;
};

constexpr size_t kMaxFrameBytes = size_t{1} << 30;

// Returns a frame as bytes.
std::string frame_of(std::string_view payload);

// Finds frames in bytes that come in pieces.
class FrameReader {
 public:
  explicit FrameReader(size_t max_bytes = kMaxFrameBytes) : max_bytes_(max_bytes) {}

  void add(std::string_view bytes) { bytes_.append(bytes); }
  // Returns the payload of the next frame, once all of it is there. Throws ChannelClosed if these bytes are no frame.
  std::optional<std::string> next();
  // Takes bytes that are not in a frame, as many as there are and as `into` holds. Returns how many.
  size_t take(std::span<std::byte> into);

 private:
  const size_t max_bytes_;
  std::string bytes_;
};

// One end of a channel, for one thread. A wait without progress for `patience_s` seconds throws ChannelClosed.
class Channel {
 public:
  // The handshake of `tls` is done. It is null on one machine, where the kernel says which user is at the other end,
  // and where the network is trusted.
  Channel(OwnedDescriptor socket, double patience_s, size_t max_frame_bytes = kMaxFrameBytes,
          std::unique_ptr<TlsSession> tls = nullptr);
  // With TLS, the other end learns that this one has closed and was not cut off.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Waits until the kernel has taken all of it.
  void send(std::string_view payload);
  // Sends what the kernel takes of it now, and keeps the rest for send_rest(); what is sent later follows it.
  void send_without_waiting(std::string_view payload);
  // Sends what the kernel takes now of the rest. Returns whether all of it is sent; else call it again when the socket
  // is writable.
  bool send_rest();
  bool has_rest() const { return !rest_.empty(); }
  // Call it after the last frame of this end, before it closes: it discards incoming bytes until the other end has
  // closed, but for at most `wait_s`. A socket that is closed with unread bytes in it may lose the bytes that were sent
  // last.
  void wait_until_closed(double wait_s);
  // Sends bytes without a frame: the previous frame has said how many, and has their checksum.
  void send_bytes(std::span<const std::byte> bytes);
  // Waits at most `wait_s` for a frame. Returns nullopt when none has come, or once one of the descriptors `news` is
  // readable.
  std::optional<std::string> receive(double wait_s, std::span<const int> news = {});
  // Returns whether something may have come that makes the socket readable no more: TLS and the frames before have
  // taken it in already. It is false once receive() has found nothing.
  bool may_have_more() const { return may_have_more_; }
  // Reads bytes straight into `into`, all of it. If this throws, they must not be used.
  void receive_bytes(std::span<std::byte> into);

  // Hands over the connection, for another protocol; the channel can no longer be used. Nothing may have been
  // received() before: a frame's reader may have taken bytes that follow the frame.
  Connection release() { return {.socket = std::move(socket_), .tls = std::move(tls_)}; }

  // Poll this descriptor once receive() has returned nothing: bytes that TLS has already decrypted make no socket
  // readable.
  int descriptor() const { return socket_.get(); }

 private:
  void write_all(std::span<const std::byte> bytes);
  void write_to_socket(std::span<const std::byte> bytes);
  std::optional<size_t> read_now(std::span<std::byte> into);
  std::optional<size_t> read_from_socket(std::span<std::byte> into);
  bool read_some();
  void wait(int16_t events);
  void wait_to_write();

  OwnedDescriptor socket_;
  const double patience_s_;
  std::unique_ptr<TlsSession> tls_;
  FrameReader reader_;
  bool may_have_more_ = true;  // the handshake may have taken more than its own words
  std::string encrypted_;      // bytes as they came from the socket
  std::string rest_;           // bytes that the socket is still to take, with TLS encrypted
  bool is_in_record_ = false;  // whether a part of a record may be in flight
};

}  // namespace tandem::mesh
