#include "mesh/relay.h"

#include <sys/socket.h>

#include <utility>

namespace tandem::mesh {

Relay::Relay(std::unique_ptr<Channel> next, size_t most_bytes)
    : next_(std::move(next)), most_bytes_(most_bytes), thread_([this] { send_all(); }) {}

Relay::~Relay() {
  const std::scoped_lock lock(mutex_);
  is_over_ = true;
  changed_.notify_all();
  shutdown(next_->descriptor(), SHUT_RDWR);  // the thread may wait for the other end
}

void Relay::pass(std::string payload, std::shared_ptr<const std::vector<std::byte>> bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return is_over_ || waiting_bytes_ <= most_bytes_; });
  if (is_over_) return;
  waiting_bytes_ += bytes->size();
  waiting_.push_back({.payload = std::move(payload), .bytes = std::move(bytes)});
  changed_.notify_all();
}

void Relay::send_all() {
  while (true) {
    Piece piece;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_over_ || !waiting_.empty(); });
      if (is_over_) return;
      piece = std::move(waiting_.front());
      waiting_.pop_front();
    }
    bool is_sent = true;
    try {
      next_->send(piece.payload);
      next_->send_bytes(*piece.bytes);
    } catch (const ChannelClosed&) {
      is_sent = false;
    }
    const std::scoped_lock lock(mutex_);
    waiting_bytes_ -= piece.bytes->size();
    is_over_ = is_over_ || !is_sent;
    changed_.notify_all();
  }
}

}  // namespace tandem::mesh
