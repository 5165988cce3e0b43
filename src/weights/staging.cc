#include "weights/staging.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "base/check.h"
#include "device/transfer.h"
#include "weights/safetensors.h"

namespace tandem::weights {
namespace {

// This keeps both parts of the buffer aligned to their dtypes, and pieces of random weights to blocks of Philox.
constexpr int64_t kPieceStep = 64;
// Elements that a thread converts at a time: so few that LibTorch uses no threads of its own.
constexpr int64_t kConvertedElements = 16384;

int64_t bytes_per_element(at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

}  // namespace

at::Tensor Staging::part(int64_t first_byte, int64_t elements, at::ScalarType dtype) {
  TANDEM_CHECK(first_byte + elements * bytes_per_element(dtype) <= kStagingBytes, "a piece beyond the staging buffer");
  if (buffer_ == nullptr) buffer_ = std::make_unique_for_overwrite<std::byte[]>(kStagingBytes);
  return at::from_blob(buffer_.get() + first_byte, {elements}, at::TensorOptions(dtype));
}

at::Tensor Staging::converted(const at::Tensor& from, const at::Tensor& to) {
  threads_.for_pieces(from.numel(), kConvertedElements, [&](int64_t first, int64_t count) {
    to.narrow(0, first, count).copy_(from.narrow(0, first, count));
  });
  return to;
}

void Staging::fill(const at::Tensor& target, at::ScalarType from, const Produce& produce) {
  const at::Tensor flat = target.view(-1);
  const at::ScalarType to = target.scalar_type();
  if (device::is_on_host(target) && from == to) {
    produce(flat, 0);
    return;
  }
  // LibTorch would convert on the way to a device in a buffer of its own.
  const bool converts_first = !device::is_on_host(target) && from != to;
  const int64_t from_bytes = bytes_per_element(from);
  const int64_t piece_bytes = from_bytes + (converts_first ? bytes_per_element(to) : 0);
  const int64_t piece_elements = kStagingBytes / piece_bytes / kPieceStep * kPieceStep;
  for (int64_t first = 0; first < flat.numel(); first += piece_elements) {
    const int64_t elements = std::min(piece_elements, flat.numel() - first);
    at::Tensor piece = part(0, elements, from);
    produce(piece, first);
    if (converts_first) piece = converted(piece, part(piece_elements * from_bytes, elements, to));
    const at::Tensor place = flat.narrow(0, first, elements);
    device::is_on_host(target) ? converted(piece, place) : place.copy_(piece);
  }
}

void Staging::stream(int64_t elements, at::ScalarType from, const Produce& produce,
                     const std::function<void(std::span<const float> piece)>& take) {
  const int64_t from_bytes = bytes_per_element(from), float_bytes = bytes_per_element(at::kFloat);
  const int64_t piece_elements = kStagingBytes / (from_bytes + float_bytes) / kPieceStep * kPieceStep;
  for (int64_t first = 0; first < elements; first += piece_elements) {
    const int64_t count = std::min(piece_elements, elements - first);
    const at::Tensor piece = part(0, count, from);
    produce(piece, first);
    const at::Tensor floats = converted(piece, part(piece_elements * from_bytes, count, at::kFloat));
    take({floats.const_data_ptr<float>(), static_cast<size_t>(count)});
  }
}

}  // namespace tandem::weights
