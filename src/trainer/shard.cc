#include "trainer/shard.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string_view>

#include "base/check.h"
#include "base/size.h"
#include "model/bucket.h"
#include "weights/weights_plan.h"

namespace tandem::trainer {

using base::Size;

using base::kFloatBytes;
constexpr int64_t kLeastElements = 4096, kAlignedElements = 32;

int64_t elements_of_row(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t rows_of_block(const std::vector<int64_t>& shape) {
  const int64_t row = elements_of_row(shape), step = kAlignedElements / std::gcd(row, kAlignedElements);
  const int64_t rows = (kLeastElements + row - 1) / row;
  return (rows + step - 1) / step * step;
}

int64_t num_blocks(const std::vector<int64_t>& shape) {
  const int64_t rows = rows_of_block(shape);
  return (shape.front() + rows - 1) / rows;
}

namespace {

// Returns the first block that does not belong to an earlier rank.
int64_t first_block(const std::vector<int64_t>& shape, int rank, int size) { return num_blocks(shape) * rank / size; }

}  // namespace

int64_t num_blocks(const std::vector<int64_t>& shape, const Shard& shard) {
  return first_block(shape, shard.rank + 1, shard.size) - first_block(shape, shard.rank, shard.size);
}

Rows rows_of(const std::vector<int64_t>& shape, const Shard& shard) {
  const auto row = [&](int rank) {
    return std::min(shape.front(), first_block(shape, rank, shard.size) * rows_of_block(shape));
  };
  return {.begin = row(shard.rank), .end = row(shard.rank + 1)};
}

int64_t elements_of(const std::vector<int64_t>& shape, const Shard& shard) {
  return Size(rows_of(shape, shard).count()) * elements_of_row(shape);
}

int64_t bucket_of(const std::string& packed_name) {
  constexpr std::string_view kLayers = "layers.";
  if (!packed_name.starts_with(kLayers)) return model::kOuterBucket;
  int64_t layer = 0;
  const char* const end = packed_name.data() + packed_name.size();
  const auto [rest, error] = std::from_chars(packed_name.data() + kLayers.size(), end, layer);
  TANDEM_CHECK(error == std::errc() && rest != end && *rest == '.', "no layer:", packed_name);
  return layer;
}

const Bucket& Buckets::of(int64_t bucket) const {
  static const Bucket kNone;  // bucket of a layer without a tensor of the layout
  if (bucket == model::kOuterBucket) return outer;
  return bucket < std::ssize(layers) ? layers[static_cast<size_t>(bucket)] : kNone;
}

int64_t Buckets::largest_layer() const {
  int64_t largest = 0;
  for (const Bucket& layer : layers) largest = std::max<int64_t>(largest, layer.num_elements);
  return largest;
}

int64_t Buckets::largest() const { return std::max<int64_t>(largest_layer(), outer.num_elements); }

Buckets buckets_of(const weights::Layout& layout, const Shard& shard) {
  Buckets buckets;
  for (size_t tensor = 0; tensor < layout.tensors.size(); ++tensor) {
    const int64_t layer = bucket_of(layout.tensors[tensor].name);
    if (layer >= std::ssize(buckets.layers)) buckets.layers.resize(static_cast<size_t>(layer) + 1);
    Bucket& bucket = layer == model::kOuterBucket ? buckets.outer : buckets.layers[static_cast<size_t>(layer)];
    bucket.members.push_back({.tensor = tensor, .first_element = bucket.num_elements});
    bucket.num_elements += weights::aligned_elements(elements_of(layout.tensors[tensor].shape, shard), kFloatBytes);
  }
  return buckets;
}

Size column_elements_of(const std::vector<Buckets>& ranks_of_a_place) {
  Size largest = 0, outer = 0;
  for (size_t layer = 0; layer < ranks_of_a_place.front().layers.size(); ++layer) {
    Size elements = 0;
    for (const Buckets& rank : ranks_of_a_place) elements += rank.layers[layer].num_elements;
    largest = std::max(largest, elements);
  }
  for (const Buckets& rank : ranks_of_a_place) outer += rank.outer.num_elements;
  return std::max(largest, outer);
}

}  // namespace tandem::trainer
