// Every operation of device/ops.h once, with drawn arguments: what a check compares with the reference, and with itself
// when it is called again.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "device_check/draws.h"

namespace tandem::device_check {

// `odd` sizes fill no vector and no tile; the others are whole.
struct Sizes {
  int64_t rows, wide, narrow;  // rows of a batch, and widths of its matrices
  int64_t heads, kv_heads, head_dim;
  int64_t vocab;
};
inline constexpr Sizes kOddSizes = {
    .rows = 37, .wide = 101, .narrow = 67, .heads = 6, .kv_heads = 2, .head_dim = 24, .vocab = 499};
inline constexpr Sizes kFullSizes = {
    .rows = 256, .wide = 256, .narrow = 128, .heads = 4, .kv_heads = 2, .head_dim = 64, .vocab = 512};

struct Operation {
  const char* name;
  std::vector<at::Tensor> (*run)(Draws& draw, const Sizes& sizes);
  // The largest error as a share of the largest result, of float32 and of bfloat16 beside one rounding of each result.
  double tolerance = 1e-5;
  double bfloat16_tolerance = 1e-5;
};

std::span<const Operation> operations();

}  // namespace tandem::device_check
