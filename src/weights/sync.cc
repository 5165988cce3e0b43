#include "weights/sync.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "base/checksum.h"
#include "device/transfer.h"

namespace tandem::weights {

namespace {

// Returns the bytes of a packed tensor, as a flat tensor that shares them.
at::Tensor flat(const WeightStore& store, const PackedTensor& packed) { return store.tensor(packed.name).view({-1}); }

std::string checksum(std::span<const std::byte> bytes) {
  return base::checksum(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace

void send_weights(const WeightStore& store, int64_t max_bytes, const SendPiece& send) {
  const auto& tensors = store.layout().tensors;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const at::Tensor elements = flat(store, tensors[t]);
    const int64_t size = elements.element_size();
    const int64_t most = std::max<int64_t>(max_bytes / size, 1);  // elements of a piece
    for (int64_t begin = 0; begin < elements.numel(); begin += most) {
      const int64_t count = std::min(most, elements.numel() - begin);
      const at::Tensor piece = device::to_host(elements.narrow(0, begin, count));
      const std::span<const std::byte> bytes(static_cast<const std::byte*>(piece.data_ptr()), piece.nbytes());
      send({.tensor = static_cast<int64_t>(t),
            .first_byte = begin * size,
            .num_bytes = count * size,
            .checksum = checksum(bytes)},
           bytes);
    }
  }
}

WeightReceiver::WeightReceiver(WeightStore& store) : store_(store) { store_.begin_update(); }

void WeightReceiver::take(const WeightPiece& piece, std::span<const std::byte> bytes) {
  const auto& tensors = store_.layout().tensors;
  const bool is_next = piece.tensor == tensor_ && piece.first_byte == byte_ && tensor_ < std::ssize(tensors);
  TANDEM_ENV_CHECK(is_next, "new weights did not come in their order");
  const at::Tensor elements = flat(store_, tensors[static_cast<size_t>(tensor_)]);
  const int64_t size = elements.element_size();
  const int64_t left = elements.numel() * size - byte_;
  TANDEM_ENV_CHECK(piece.num_bytes > 0 && piece.num_bytes <= left && piece.num_bytes % size == 0 &&
                       piece.num_bytes == std::ssize(bytes),
                   "a piece of new weights is not of their size");
  TANDEM_ENV_CHECK(checksum(bytes) == piece.checksum, fmt::format("new weights of {} have changed on their way",
                                                                  tensors[static_cast<size_t>(tensor_)].name));
  const at::Tensor target = elements.narrow(0, byte_ / size, piece.num_bytes / size);
  // LibTorch has no tensor of constant bytes; copy_ only reads them.
  target.copy_(
      at::from_blob(const_cast<std::byte*>(bytes.data()), {target.numel()}, at::TensorOptions(target.scalar_type())));
  byte_ += piece.num_bytes;
  if (piece.num_bytes < left) return;
  ++tensor_;
  byte_ = 0;
}

void WeightReceiver::finish(uint64_t version) {
  TANDEM_ENV_CHECK(tensor_ == std::ssize(store_.layout().tensors), "new weights have not all come");
  store_.end_update(version);
}

}  // namespace tandem::weights
