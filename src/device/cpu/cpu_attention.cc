#include "device/cpu/cpu_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "base/check.h"
#include "device/block.h"
#include "device/cpu/tensor_data.h"

namespace tandem::device::cpu {

using at::Tensor;

namespace {

constexpr int64_t kPiece = 16384;  // elements that a thread takes at a time

AttentionArgs attention_args(const at::Tensor& q_THK, const at::Tensor& kv_layer, const AttentionRows& rows,
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
std::vector<std::pair<int64_t, int64_t>> row_spans(const AttentionArgs& args, int64_t max_rows, int64_t begin,
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

Tensor zeros(ThreadPool& threads, at::IntArrayRef sizes) {
  Tensor x = at::empty(sizes, at::kFloat);
  float* const data = x.data_ptr<float>();
  threads.for_pieces(x.numel(), kPiece, [&](int64_t begin, int64_t n) { std::fill_n(data + begin, n, 0.0F); });
  return x;
}
// Rounds float32 to `dtype`. Returns the tensor itself where nothing is rounded.
Tensor rounded(ThreadPool& threads, const Tensor& x, at::ScalarType dtype) {
  if (dtype == at::kFloat) return x;
  Tensor y = at::empty(x.sizes(), dtype);
  const float* const from = x.const_data_ptr<float>();
  auto* const to = y.data_ptr<at::BFloat16>();
  threads.for_pieces(x.numel(), kPiece, [&](int64_t begin, int64_t n) { std::copy_n(from + begin, n, to + begin); });
  return y;
}

}  // namespace

void CpuAttention::append(const Tensor& kv_layer, const Tensor& k_TGK, const Tensor& v_TGK, const Tensor& tokens,
                          const Tensor& slot_mapping) {
  const Elem elem = elem_of(kv_layer);
  const int64_t kv_heads = k_TGK.size(1), width = k_TGK.size(2), n = tokens.numel();
  const int32_t* token = static_cast<const int32_t*>(in(tokens));
  const int32_t* slot = static_cast<const int32_t*>(in(slot_mapping));
  // Each slot belongs to one token, so no two writes meet.
  threads_.for_each(n, 32, [&](int64_t i) {
    if (slot[i] < 0) return;
    const int64_t at = token[i] * kv_heads * width;
    table_.kv_write(offset(in(k_TGK), at, elem), offset(in(v_TGK), at, elem),
                    offset(kv_layer.data_ptr(), slot[i] / kBlockTokens * kv_layer.stride(0), elem),
                    slot[i] % kBlockTokens, kv_heads, width, elem);
  });
}

Tensor CpuAttention::forward(const Tensor& q_THK, const Tensor& kv_layer, const AttentionRows& rows,
                             const Tensor& lse_TH) {
  Tensor out_THK = at::empty_like(q_THK);
  const AttentionArgs args = attention_args(q_THK, kv_layer, rows, out_THK, lse_TH);
  for (int64_t t = 0; t < q_THK.size(0); ++t)
    if (args.sequence_of_row[t] < 0) out_THK.select(0, t).zero_();
  const std::vector<std::pair<int64_t, int64_t>> spans = row_spans(args, table_.attention_rows, 0, q_THK.size(0));
  const int64_t tasks = static_cast<int64_t>(spans.size()) * args.num_kv_heads;
  threads_.for_each(tasks, 4, [&](int64_t task, int thread) {
    const auto [begin, end] = spans[static_cast<size_t>(task / args.num_kv_heads)];
    if (args.sequence_of_row[begin] < 0) return;
    table_.attention(args, begin, end, task % args.num_kv_heads, scratch_for(args, begin, end, thread));
  });
  return out_THK;
}

Ops::AttentionGrad CpuAttention::backward(const Tensor& dout_THK, const Tensor& q_THK, const Tensor& out_THK,
                                          const Tensor& lse_TH, const Tensor& kv_layer, const AttentionRows& rows) {
  TANDEM_CHECK(rows.group_offsets.defined() && rows.kv_tokens.defined() && rows.kv_slots.defined(),
               "rows of attention without what the backward needs");
  const int64_t head_dim = q_THK.size(2), num_kv_heads = kv_layer.size(2);
  const Tensor dkv = zeros(threads_, {kv_layer.size(0), 2, num_kv_heads, head_dim * kBlockTokens});
  Tensor dq_THK = query_gradient(dout_THK, q_THK, out_THK, lse_TH, kv_layer, rows, dkv);
  auto [dk_TGK, dv_TGK] = collected(dkv, rows, q_THK.size(0), head_dim);
  return {std::move(dq_THK), rounded(threads_, dk_TGK, q_THK.scalar_type()),
          rounded(threads_, dv_TGK, q_THK.scalar_type())};
}

Tensor CpuAttention::query_gradient(const Tensor& dout_THK, const Tensor& q_THK, const Tensor& out_THK,
                                    const Tensor& lse_TH, const Tensor& kv_layer, const AttentionRows& rows,
                                    const Tensor& dkv) {
  Tensor dq_THK = at::empty_like(q_THK);
  const AttentionArgs args = attention_args(q_THK, kv_layer, rows, out_THK, lse_TH);
  const AttentionBackwardArgs backward{args, in(dout_THK), dq_THK.data_ptr(), dkv.data_ptr<float>(), dkv.stride(0)};
  const int32_t* units = static_cast<const int32_t*>(in(rows.group_offsets));
  const int64_t tasks = (rows.group_offsets.numel() - 1) * args.num_kv_heads;
  threads_.for_each(tasks, 1, [&](int64_t task, int thread) {
    const int64_t unit = task / args.num_kv_heads;
    for (const auto& [begin, end] : row_spans(args, table_.attention_rows, units[unit], units[unit + 1]))
      table_.attention_backward(backward, begin, end, task % args.num_kv_heads, scratch_for(args, begin, end, thread));
  });
  return dq_THK;
}

std::pair<Tensor, Tensor> CpuAttention::collected(const Tensor& dkv, const AttentionRows& rows, int64_t num_tokens,
                                                  int64_t head_dim) {
  const int64_t num_kv_heads = dkv.size(2), n = rows.kv_tokens.numel();
  const Tensor dk = zeros(threads_, {num_tokens, num_kv_heads, head_dim});
  const Tensor dv = zeros(threads_, {num_tokens, num_kv_heads, head_dim});
  const int32_t* token = static_cast<const int32_t*>(in(rows.kv_tokens));
  const int32_t* slot = static_cast<const int32_t*>(in(rows.kv_slots));
  // Threads split the heads' columns, so each token sums its slots in the order of i.
  threads_.for_each(num_kv_heads, 1, [&](int64_t g) {
    for (int64_t i = 0; i < n; ++i) {
      const float* block = dkv.const_data_ptr<float>() + slot[i] / kBlockTokens * dkv.stride(0) +
                           g * head_dim * kBlockTokens + slot[i] % kBlockTokens;
      const float* block_v = block + num_kv_heads * head_dim * kBlockTokens;
      float* k = dk.data_ptr<float>() + (token[i] * num_kv_heads + g) * head_dim;
      float* v = dv.data_ptr<float>() + (token[i] * num_kv_heads + g) * head_dim;
      for (int64_t d = 0; d < head_dim; ++d) {
        k[d] += block[d * kBlockTokens];
        v[d] += block_v[d * kBlockTokens];
      }
    }
  });
  return {dk, dv};
}

float* CpuAttention::scratch_for(const AttentionArgs& args, int64_t begin, int64_t end, int thread) {
  int64_t keys = 0;
  for (int64_t r = begin; r < end; ++r) keys = std::max<int64_t>(keys, args.row_position[r] + 1);
  std::vector<float>& scratch = scratch_[static_cast<size_t>(thread)];
  const auto needed = static_cast<size_t>(
      attention_scratch_floats(end - begin, keys, args.num_heads / args.num_kv_heads, args.head_dim));
  if (scratch.size() < needed) scratch.resize(needed);
  return scratch.data();
}

}  // namespace tandem::device::cpu
