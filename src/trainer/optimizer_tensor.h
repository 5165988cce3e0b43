// One tensor of the optimizer's state, as a checkpoint holds it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "weights/layout.h"

namespace tandem::trainer {

// The kinds are in the order in which checkpoints hold them.
enum class StateKind : uint8_t { kExpAvg, kExpAvgSq, kMaster };

// Returns the beginning of a tensor's name in a checkpoint.
constexpr const char* to_string(StateKind kind) {
  if (kind == StateKind::kMaster) return "master";
  return kind == StateKind::kExpAvg ? "exp_avg" : "exp_avg_sq";
}

struct OptimizerTensor {
  StateKind kind = StateKind::kMaster;
  // An entry of the store's layout, which lives as long as the store; with several tensor ranks it is the layout of a
  // part.
  const weights::PackedTensor* packed = nullptr;
  at::Tensor tensor;      // float32: rows [row_begin, row_begin + tensor.size(0)) of the packed tensor, at least one
  int64_t row_begin = 0;  // first row; with one data rank the whole packed tensor is its own
};

}  // namespace tandem::trainer
