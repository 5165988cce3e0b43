// Passes frames and bytes on to the next process by a thread of its own, so that they travel on while more arrive. No
// torch.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "mesh/channel.h"

namespace tandem::mesh {

class Relay {
 public:
  // At most `most_bytes` wait to be sent, and one piece more.
  Relay(std::unique_ptr<Channel> next, size_t most_bytes);
  // Drops what has not been sent.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Sends a frame and the bytes that it announces, after all that was passed before; waits while too many bytes wait.
  // Once the next process is gone, or has not moved for the channel's patience, it does nothing.
  void pass(std::string payload, std::shared_ptr<const std::vector<std::byte>> bytes);

 private:
  struct Piece {
    std::string payload;
    std::shared_ptr<const std::vector<std::byte>> bytes;
  };
  void send_all();

  const std::unique_ptr<Channel> next_;
  const size_t most_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> waiting_;
  size_t waiting_bytes_ = 0;
  bool is_over_ = false;  // there is nobody to send to, or this object ends
  std::jthread thread_;   // the last member: it ends before what it uses
};

}  // namespace tandem::mesh
