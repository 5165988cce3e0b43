// Frames over a stream socket between two processes of one run: a length, a checksum and bytes. What comes is not
// trusted: a length above the bound, or bytes that do not match their checksum, end the channel with an error. Between
// machines all of it goes through TLS where there is a secret (mesh/tls_session.h), so nobody else has written a length
// that is believed. No torch.
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

// The other end has closed, does not move for as long as it was given, or sends what is no frame.
class ChannelClosed : public EnvironmentError {
 public:
  using EnvironmentError::EnvironmentError;
};

// A stream socket to another process of the run, and what secures it.
struct Connection {
  OwnedDescriptor socket;
  // Its handshake is done; null on one machine, where the kernel says who is there, and where the network is trusted.
  std::unique_ptr<TlsSession> tls = nullptr;
};

constexpr size_t kMaxFrameBytes = size_t{1} << 30;

// A frame as bytes.
std::string frame_of(std::string_view payload);

// Finds frames in bytes that come in pieces.
class FrameReader {
 public:
  explicit FrameReader(size_t max_bytes = kMaxFrameBytes) : max_bytes_(max_bytes) {}

  void add(std::string_view bytes) { bytes_.append(bytes); }
  // The payload of the next frame, once all of it is there. ChannelClosed: these bytes are no frame.
  std::optional<std::string> next();
  // Takes bytes that are not in a frame, as many as there are and as `into` holds; returns how many.
  size_t take(std::span<std::byte> into);

 private:
  const size_t max_bytes_;
  std::string bytes_;
};

// One end. For one thread. A wait that nothing moves in for `patience_s` seconds throws ChannelClosed.
class Channel {
 public:
  // `tls`: its handshake is done; null on one machine, where the kernel says who is there, and where the network is
  // trusted.
  Channel(OwnedDescriptor socket, double patience_s, size_t max_frame_bytes = kMaxFrameBytes,
          std::unique_ptr<TlsSession> tls = nullptr);
  // Where there is TLS, the other end learns that this one has closed and was not cut off.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Waits until the kernel has taken all of it.
  void send(std::string_view payload);
  // Behind the last frame of this end, which closes then: throws away what still comes, so long at most, until the
  // other end has closed. A socket that is closed with something unread in it may lose what was said last.
  void wait_until_closed(double wait_s);
  // Bytes without a frame: the frame before has said how many, and has their checksum.
  void send_bytes(std::span<const std::byte> bytes);
  // Waits so long for a frame: nullopt when none has come.
  std::optional<std::string> receive(double wait_s);
  // Straight into `into`, all of it. Where this throws, what is there is not to be believed.
  void receive_bytes(std::span<std::byte> into);

  // The connection itself, for another protocol. Nothing may have been received() before: a frame's reader may have
  // taken bytes that follow it. The channel is of no more use.
  Connection release() { return {.socket = std::move(socket_), .tls = std::move(tls_)}; }

  // To poll, once receive() has had nothing more: what TLS has decrypted makes no socket readable.
  int descriptor() const { return socket_.get(); }

 private:
  void write_all(std::span<const std::byte> bytes);
  void write_to_socket(std::span<const std::byte> bytes);
  std::optional<size_t> read_now(std::span<std::byte> into);
  std::optional<size_t> read_from_socket(std::span<std::byte> into);
  bool read_some(double wait_s);
  void wait(int16_t events);

  OwnedDescriptor socket_;
  const double patience_s_;
  std::unique_ptr<TlsSession> tls_;
  FrameReader reader_;
  std::string encrypted_;      // as it came from the socket
  bool is_in_record_ = false;  // a part of a record may be on its way
};

}  // namespace tandem::mesh
