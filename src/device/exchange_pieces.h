// What an exchange moves, as every kind of communicator takes it: bytes at an address, for one rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/communicator.h"

namespace tandem::device {

// A tensor of an exchange.
struct Piece {
  int rank = 0;
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

// lists' tensors, by rank and then by index: without the empty ones, which are not moved, and those of the own rank.
// BugError: lists that are not one for each rank, or a tensor that is not contiguous.
std::vector<Piece> pieces_of(const Communicator& ranks, const TensorLists& lists);

}  // namespace tandem::device
