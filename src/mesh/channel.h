// Frames over a stream socket between two processes of one run: a length, a checksum and bytes. What comes is not
// trusted: a length above the bound, or bytes that do not match their checksum, end the channel with an error. Between
// machines the checksum is the tag of a secret (mesh/channel_seal.h). No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/channel_seal.h"
#include "mesh/network.h"
#include "tandem/error.h"

namespace tandem::mesh {

// The other end has closed, does not move for as long as it was given, or sends what is no frame.
class ChannelClosed : public EnvironmentError {
 public:
  using EnvironmentError::EnvironmentError;
};

constexpr size_t kMaxFrameBytes = size_t{1} << 30;

// A frame as bytes; with a seal, the next of its channel.
std::string frame_of(std::string_view payload, ChannelSeal* seal = nullptr);

// Finds frames in bytes that come in pieces.
class FrameReader {
 public:
  // `seal`: borrowed; null: checksums keep no attacker out.
  explicit FrameReader(size_t max_bytes = kMaxFrameBytes, ChannelSeal* seal = nullptr)
      : max_bytes_(max_bytes), seal_(seal) {}

  void add(std::string_view bytes) { bytes_.append(bytes); }
  // The payload of the next frame, once all of it is there. ChannelClosed: these bytes are no frame.
  std::optional<std::string> next();
  // Takes bytes that are not in a frame, as many as there are and as `into` holds; returns how many.
  size_t take(std::span<std::byte> into);

 private:
  const size_t max_bytes_;
  ChannelSeal* const seal_;
  std::string bytes_;
};

// One end. For one thread. A wait that nothing moves in for `patience_s` seconds throws ChannelClosed.
class Channel {
 public:
  // `seal`: null on one machine, where the kernel says who is there, and where the network is trusted.
  Channel(OwnedDescriptor socket, double patience_s, size_t max_frame_bytes = kMaxFrameBytes,
          std::unique_ptr<ChannelSeal> seal = nullptr);

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

  int descriptor() const { return socket_.get(); }  // to poll

 private:
  void write_all(std::span<const std::byte> bytes);
  void read_all(std::span<std::byte> into);
  void read_stretch(std::span<std::byte> into);
  bool read_some(double wait_s);
  void wait(int16_t events);

  OwnedDescriptor socket_;
  const double patience_s_;
  const std::unique_ptr<ChannelSeal> seal_;
  FrameReader reader_;
  std::vector<std::byte> stretch_;  // of sealed bytes that were asked for in part
  size_t num_taken_ = 0;
};

// A socket of this machine without a file, by a name that holds while it listens. Only processes of the same user get
// through. EnvironmentError: another process listens under this name.
OwnedDescriptor listen_locally(const std::string& name);
// The next one that has connected, if there is one; who is of another user is turned away.
std::optional<OwnedDescriptor> accept_locally(const OwnedDescriptor& listener);
// nullopt: nobody listens there. EnvironmentError: who listens is of another user.
std::optional<OwnedDescriptor> connect_locally(const std::string& name);

}  // namespace tandem::mesh
