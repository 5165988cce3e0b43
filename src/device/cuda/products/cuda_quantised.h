// Quantised matrices as the operations take them (device/quantised_matrix.h), for kernels (quantised.h).
#pragma once

#include <ATen/ops/empty.h>

#include <span>

#include "base/check.h"
#include "device/cuda/products/quantised.h"
#include "device/quantised_matrix.h"

namespace tandem::device::cuda {

// Returns `count` parts from part `first` on.
inline QuantisedWeight parts_of(const QuantisedMatrix& w, size_t first, size_t count) {
  TANDEM_CHECK(count <= QuantisedWeight::kMostParts, "a quantised matrix of many parts");
  const auto* const bytes = static_cast<const std::byte*>(w.bytes.const_data_ptr());
  QuantisedWeight weight;
  for (const QuantisedPart& part : std::span(w.parts).subspan(first, count)) {
    weight.parts[weight.num_parts] = quantised_bytes(part, bytes);
    weight.rows[weight.num_parts++] = part.num_rows;
  }
  return weight;
}

// Returns the weights of experts, which follow each other and have the same parts.
inline QuantisedExperts experts_of(const QuantisedMatrix& w_XNK, int64_t num_experts) {
  const std::vector<QuantisedPart>& parts = w_XNK.parts;
  const auto X = static_cast<size_t>(num_experts), each = parts.size() / X;
  TANDEM_CHECK(each > 0 && parts.size() == each * X, "a quantised matrix of", parts.size(), "parts for", X, "experts");
  const int64_t bytes = X > 1 ? parts[each].first_byte - parts[0].first_byte : 0;
  for (size_t i = each; i < parts.size(); ++i) {
    TANDEM_CHECK(
        parts[i].first_byte == parts[i - each].first_byte + bytes && parts[i].num_rows == parts[i - each].num_rows,
        "the experts of a quantised matrix differ in their parts");
  }
  return {.first = parts_of(w_XNK, 0, each), .num_experts = num_experts, .bytes_of_expert = bytes};
}

// Returns room for its weights in bfloat16.
inline at::Tensor room_for(const QuantisedMatrix& w_NK) {
  return at::empty({w_NK.num_rows(), w_NK.num_columns()}, w_NK.bytes.options().dtype(at::kBFloat16));
}

}  // namespace tandem::device::cuda
