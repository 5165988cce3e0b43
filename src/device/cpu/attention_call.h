// Prepares one call of the attention kernels: the pointers that it takes, and the rows that it computes together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/cpu/kernels.h"
#include "device/cpu/tensor_data.h"
#include "device/ops.h"

namespace tandem::device::cpu {

inline AttentionArgs attention_args(const at::Tensor& q_THK, const at::Tensor& kv_layer, const AttentionRows& rows,
                                    const at::Tensor& out_THK, const at::Tensor& lse_TH) {
  const int64_t head_dim = q_THK.size(2);
  TANDEM_CHECK_EQ(kv_layer.size(3), head_dim * kBlockTokens);
  return {in(q_THK),
          kv_layer.const_data_ptr(),
          out_THK.data_ptr(),
          lse_TH.defined() ? lse_TH.data_ptr<float>() : nullptr,
          static_cast<const int32_t*>(in(rows.sequence_of_row)),
          static_cast<const int32_t*>(in(rows.row_position)),
          static_cast<const int32_t*>(in(rows.block_table)),
          rows.block_table.size(1),
          kv_layer.stride(0),
          q_THK.size(1),
          kv_layer.size(2),
          head_dim,
          elem_of(q_THK),
          rows.window};
}

// Splits [begin, end) into runs of at most `max_rows` neighbouring rows of one sequence.
inline std::vector<std::pair<int64_t, int64_t>> row_spans(const AttentionArgs& args, int64_t max_rows, int64_t begin,
                                                          int64_t end) {
  std::vector<std::pair<int64_t, int64_t>> spans;
  for (int64_t r = begin; r < end;) {
    int64_t stop = r + 1;
    while (stop < end && stop - r < max_rows && args.sequence_of_row[stop] == args.sequence_of_row[r]) ++stop;
    spans.emplace_back(r, stop);
    r = stop;
  }
  return spans;
}

}  // namespace tandem::device::cpu
