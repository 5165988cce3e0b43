#include "device/exchange_pieces.h"

#include "base/check.h"

namespace tandem::device {

std::vector<Piece> pieces_of(const Communicator& ranks, const TensorLists& lists) {
  TANDEM_CHECK_EQ(std::ssize(lists), ranks.size(), "an exchange has one list for each rank");
  std::vector<Piece> pieces;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (rank == ranks.rank()) continue;
    for (const at::Tensor& tensor : lists[static_cast<size_t>(rank)]) {
      TANDEM_CHECK(tensor.defined() && tensor.is_contiguous(), "a tensor of an exchange is contiguous; rank", rank);
      const auto bytes = static_cast<int64_t>(tensor.nbytes());
      if (bytes > 0) pieces.push_back({rank, static_cast<std::byte*>(tensor.data_ptr()), bytes});
    }
  }
  return pieces;
}

}  // namespace tandem::device
