// Sends the weights of one process's store into another's over any channel that carries bytes, if one cannot export its
// memory to the other (shown_weights.h). Both sides compute names, shapes and order from their layout (weight_spec), so
// none of that is sent: a piece is a part of the store's tensors in the layout's order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "weights/store.h"

namespace tandem::weights {

// A piece is a contiguous part of one packed tensor.
struct WeightPiece {
  int64_t tensor = 0;  // index in the layout
  int64_t first_byte = 0, num_bytes = 0;
  std::string checksum;  // base::checksum of the bytes; it misses a change on the way once in 2^128
};

// Calls `send` with each piece, at most `max_bytes` long, in order; the bytes are valid during the call. Those of a
// device are copied through host memory.
using SendPiece = std::function<void(const WeightPiece& piece, std::span<const std::byte> bytes)>;
void send_weights(const WeightStore& store, int64_t max_bytes, const SendPiece& send);

// Fills a store with all pieces of a version, in order. From its first to its last piece the store is not whole, and a
// view of it is a BugError, so that an incomplete version never samples.
class WeightReceiver {
 public:
  // The store is borrowed and has storage.
  explicit WeightReceiver(WeightStore& store);

  // Throws EnvironmentError if the piece is not the next one, or its bytes have another checksum.
  void take(const WeightPiece& piece, std::span<const std::byte> bytes);
  // Makes the store whole, with this version. Throws EnvironmentError if pieces are missing.
  void finish(uint64_t version);

 private:
  WeightStore& store_;
  int64_t tensor_ = 0, byte_ = 0;  // position of the next piece
};

}  // namespace tandem::weights
