// The bytes of an exchange as every kind of communicator takes them: an address and a size for one rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/communicator.h"

namespace tandem::device {

// A piece is one tensor of an exchange.
struct Piece {
  int rank = 0;
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

// Returns the tensors of `lists`, by rank and then by index, without empty ones, which are not moved, and without those
// of the own rank. Throws BugError if there is not one list for each rank, or if a tensor is not contiguous.
std::vector<Piece> pieces_of(const Communicator& ranks, const TensorLists& lists);

}  // namespace tandem::device
