#include "weights/not_finite.h"

#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "device/transfer.h"
#include "weights/box.h"
#include "weights/safetensors.h"

namespace tandem::weights {

namespace {

struct Found {
  int64_t element;
  float value;
};

std::optional<Found> first_not_finite(const at::Tensor& weight) {
  const at::Tensor flat = weight.detach().view(-1);
  const int64_t piece_elements = kStagingBytes / static_cast<int64_t>(sizeof(float));
  for (int64_t begin = 0; begin < flat.numel(); begin += piece_elements) {
    const int64_t count = std::min(piece_elements, flat.numel() - begin);
    const at::Tensor piece = device::to_host(flat.narrow(0, begin, count)).to(at::kFloat);
    const float* values = piece.const_data_ptr<float>();
    for (int64_t i = 0; i < count; ++i) {
      if (!std::isfinite(values[i])) return Found{begin + i, values[i]};
    }
  }
  return std::nullopt;
}

}  // namespace

std::string describe_not_finite(const WeightStore& store) {
  for (const PackedTensor& packed : store.layout().tensors) {
    if (packed.is_quantised()) continue;  // it was checked when it was quantised
    for (const Slice& slice : packed.slices) {
      const std::optional<Found> found = first_not_finite(store.slice(packed, slice));
      if (!found) continue;
      const Box box = box_of(slice);
      const int64_t index = box.index_of(found->element);
      const std::string place = slice.shape.size() > 1 ? fmt::format("row {}, column {}", index / box.whole_columns,
                                                                     index % box.whole_columns)
                                                       : fmt::format("element {}", index);
      return fmt::format("{} holds {} (the first at {})", slice.hf_name,
                         std::isnan(found->value) ? "NaN" : "an infinity", place);
    }
  }
  return "";
}

std::string why_not_finite(const WeightStore& store) {
  const std::string damaged = describe_not_finite(store);
  if (!damaged.empty()) return damaged + ": take the checkpoint again from where it is whole";
  return "all weights are finite, so the forward pass overflowed: the weights have diverged";
}

}  // namespace tandem::weights
