// The weights of one process's store into another's, over whatever carries bytes between them: where the one cannot
// show its memory to the other (shown_weights.h). Both sides compute names, shapes and order from their layout
// (weight_spec), and nothing of it is sent: a piece is a stretch of the store's tensors in the layout's order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "weights/store.h"

namespace tandem::weights {

// A stretch of one packed tensor.
struct WeightPiece {
  int64_t tensor = 0;  // by its place in the layout
  int64_t first_byte = 0, num_bytes = 0;
  std::string checksum;  // base::checksum of the bytes: what is changed on the way is found, but for 1 in 2^128
};

// Calls `send` with each piece, at most `max_bytes` long, in order; the bytes are valid during the call. Those of a
// device come through host memory.
using SendPiece = std::function<void(const WeightPiece& piece, std::span<const std::byte> bytes)>;
void send_weights(const WeightStore& store, int64_t max_bytes, const SendPiece& send);

// Fills a store with all pieces of a version, in order. From its first to its last piece the store is not whole, and a
// view of it is a BugError: a version that breaks off never samples.
class WeightReceiver {
 public:
  // Borrowed; has storage.
  explicit WeightReceiver(WeightStore& store);

  // `read` writes the piece's bytes where it is told. EnvironmentError: it is not the next piece, or its checksum is
  // another.
  using ReadBytes = std::function<void(std::span<std::byte> into)>;
  void take(const WeightPiece& piece, const ReadBytes& read);
  // The store is whole, and has this version. EnvironmentError: pieces are missing.
  void finish(uint64_t version);

 private:
  WeightStore& store_;
  int64_t tensor_ = 0, byte_ = 0;  // of the next piece
};

}  // namespace tandem::weights
