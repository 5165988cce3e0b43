#include "device/cuda/attention/cuda_attention.h"

#include <ATen/Context.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/block.h"
#include "device/cuda/attention/attention_grad.h"
#include "device/cuda/gpu_limits.h"
#include "device/cuda/graph.h"
#include "device/cuda/rowwise.h"

namespace tandem::device {
namespace {

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

void check(cudaError_t error) {
  TANDEM_ENV_CHECK(error == cudaSuccess, "the GPU's attention failed:", cudaGetErrorString(error));
}

const int32_t* host_data(const Tensor& x) { return x.const_data_ptr<int32_t>(); }

cuda::PagedRows paged(const AttentionRows& rows) {
  return {.sequence_of_row = host_data(rows.sequence_of_row),
          .row_position = host_data(rows.row_position),
          .num_rows = rows.sequence_of_row.size(0),
          .block_table = host_data(rows.block_table),
          .num_sequences = rows.block_table.size(0),
          .max_blocks = rows.block_table.size(1)};
}

cuda::PagedKv paged(const Tensor& kv_layer) {
  return {.data = kv_layer.mutable_data_ptr(),
          .block_stride = kv_layer.stride(0),
          .num_kv_heads = kv_layer.size(2),
          .head_dim = kv_layer.size(3) / kBlockTokens,
          .num_blocks = kv_layer.size(0)};
}

cuda::AttentionHeads heads_of(const Tensor& q_THK, const Tensor& kv_layer) {
  const int64_t num_kv_heads = kv_layer.size(2);
  return {.group = q_THK.size(1) / num_kv_heads, .num_kv_heads = num_kv_heads, .head_dim = q_THK.size(2)};
}

// While it lives, LibTorch's operations give the same bits at each call.
class Deterministic {
 public:
  Deterministic() {
    context_.setDeterministicAlgorithms(true, /*warn_only=*/false);
    context_.setDeterministicFillUninitializedMemory(false);
  }
  ~Deterministic() {
    context_.setDeterministicAlgorithms(was_on_, warned_only_);
    context_.setDeterministicFillUninitializedMemory(filled_);
  }
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;

 private:
  at::Context& context_ = at::globalContext();
  const bool was_on_ = context_.deterministicAlgorithms(), warned_only_ = context_.deterministicAlgorithmsWarnOnly(),
             filled_ = context_.deterministicFillUninitializedMemory();
};

}  // namespace

CudaRows::CudaRows(const AttentionRows& rows, at::Device device, cuda::Staging& staging)
    : rows_(rows), device_(device), staging_(staging) {
  rows_.prepared = nullptr;
}

Tensor CudaRows::on_device(const int32_t* values, int64_t count) const {
  Tensor tensor = at::empty({count}, at::TensorOptions(at::kInt).device(device_));
  staging_.to_device(values, tensor.mutable_data_ptr(), static_cast<size_t>(count) * sizeof(int32_t), stream());
  return tensor;
}

void CudaRows::fill(Forward& forward) {
  std::vector<int32_t> words;
  // Rows with memory of their own are refilled under a captured graph, which has the kernel of all rows alone.
  const int64_t head_dim = forward.heads.head_dim;
  forward.work = cuda::build_work(paged(rows_), forward.heads, words,
                                  {.at_once = cuda::attention_items_at_once(cuda::gpu_limits(), head_dim),
                                   .large_items = !rows_.memory.defined() && cuda::computes_large_items(head_dim)});
  const auto num_words = static_cast<int64_t>(words.size());
  if (!forward.words.defined() && rows_.memory.defined()) {
    forward.words = rows_.memory.view(at::kInt).narrow(0, 0, num_words);
  }
  if (!forward.words.defined()) {
    forward.words = on_device(words.data(), num_words);
    return;
  }
  TANDEM_CHECK_EQ(forward.words.numel(), num_words, "other numbers of rows, sequences or blocks");
  staging_.to_device(words.data(), forward.words.mutable_data_ptr(), words.size() * sizeof(int32_t), stream());
}

void CudaRows::refill(const AttentionRows& rows) {
  const Tensor memory = rows_.memory;  // recorded work reads it
  rows_ = rows;
  rows_.memory = memory;
  rows_.prepared = nullptr;
  if (forward_) fill(*forward_);
  backward_.reset();
  aten_.reset();
}

const CudaRows::Forward& CudaRows::forward(const cuda::AttentionHeads& heads) {
  if (!forward_ || forward_->heads != heads) {
    forward_.emplace().heads = heads;
    fill(*forward_);
  }
  return *forward_;
}

const CudaRows::Backward& CudaRows::backward(const cuda::AttentionHeads& heads) {
  if (backward_ && backward_->heads == heads) return *backward_;
  const auto send = [&](const std::vector<int32_t>& values) {
    return on_device(values.data(), static_cast<int64_t>(values.size()));
  };
  const cuda::ExpandedRows expanded =
      cuda::expand_rows(paged(rows_), host_data(rows_.kv_tokens), host_data(rows_.kv_slots), rows_.kv_tokens.size(0));
  Backward backward = {.cu_q = send(expanded.cu_q),
                       .cu_k = send(expanded.cu_k),
                       .slots = send(expanded.slots),
                       .token_offsets = send(expanded.token_offsets),
                       .rows_of_token = send(expanded.expanded_rows_of_token),
                       .max_q = expanded.max_q,
                       .max_k = expanded.max_k,
                       .heads = heads};
  if (cuda::computes_attention_grad(heads)) {
    const cuda::GradWork work = cuda::build_grad_work(expanded, heads);
    const auto send_words = [&]<typename T>(const std::vector<T>& values) {
      static_assert(sizeof(T) % sizeof(int32_t) == 0);
      return on_device(reinterpret_cast<const int32_t*>(values.data()),
                       static_cast<int64_t>(values.size() * sizeof(T) / sizeof(int32_t)));
    };
    backward.segments = send_words(work.segments);
    backward.tiles = send_words(work.tiles);
    backward.items = send_words(work.items);
    backward.num_tiles = std::ssize(work.tiles);
    backward.num_items = std::ssize(work.items);
  }
  return backward_.emplace(std::move(backward));
}

AttentionRows CudaRows::prepared_by(const Ops& aten, int64_t window) {
  if (!aten_) aten_ = aten.prepare(rows_);
  AttentionRows rows = *aten_;
  rows.window = window;
  return rows;
}

bool has_cuda_attention(const Tensor& q_THK, const Tensor& kv_layer) {
  return q_THK.scalar_type() == at::kBFloat16 &&
         cuda::supports_attention(q_THK.size(2), q_THK.size(1), kv_layer.size(2));
}

void cuda_kv_append(const Tensor& kv_layer, const Tensor& k_TGK, const Tensor& v_TGK, const Tensor& tokens,
                    const Tensor& slot_mapping) {
  check(cuda::kv_append(paged(kv_layer), k_TGK.const_data_ptr(), v_TGK.const_data_ptr(),
                        tokens.const_data_ptr<int32_t>(), slot_mapping.const_data_ptr<int32_t>(), slot_mapping.size(0),
                        stream()));
}

Tensor cuda_attention(const Tensor& q_THK, const Tensor& kv_layer, CudaRows& rows, int64_t window,
                      const Tensor& lse_TH) {
  Tensor out_THK = at::empty_like(q_THK);
  if (q_THK.numel() == 0) return out_THK;
  const CudaRows::Forward& forward = rows.forward(heads_of(q_THK, kv_layer));
  check(cuda::attention_forward({.q_THK = q_THK.const_data_ptr(),
                                 .out_THK = out_THK.mutable_data_ptr(),
                                 .lse_TH = lse_TH.defined() ? lse_TH.mutable_data_ptr<float>() : nullptr,
                                 .num_heads = q_THK.size(1),
                                 .kv = paged(kv_layer),
                                 .work = forward.work,
                                 .words = forward.words.mutable_data_ptr<int32_t>(),
                                 .refillable = cuda::is_capturing(stream()),
                                 .window = window},
                                stream()));
  return out_THK;
}

namespace {

// The gradient with regard to queries and expanded keys and values.
struct ExpandedGrad {
  Tensor dq_THK, dk_nGK, dv_nGK;
};

struct ExpandedInputs {
  const Tensor &dout_THK, &q_THK, &k_nGK, &v_nGK, &out_THK, &lse_TH;
};

ExpandedGrad own_backward(const ExpandedInputs& in, const CudaRows::Backward& b, int64_t window) {
  const int64_t scratch_bytes = cuda::GradScratch(b.heads, b.num_tiles).bytes;
  const Tensor scratch = at::empty({scratch_bytes}, in.q_THK.options().dtype(at::kByte));
  const ExpandedGrad grad = {at::empty_like(in.q_THK), at::empty_like(in.k_nGK), at::empty_like(in.v_nGK)};
  check(cuda::attention_grad({.q_THK = in.q_THK.const_data_ptr(),
                              .k_nGK = in.k_nGK.const_data_ptr(),
                              .v_nGK = in.v_nGK.const_data_ptr(),
                              .out_THK = in.out_THK.const_data_ptr(),
                              .dout_THK = in.dout_THK.const_data_ptr(),
                              .lse_TH = in.lse_TH.const_data_ptr<float>(),
                              .dq_THK = grad.dq_THK.mutable_data_ptr(),
                              .dk_nGK = grad.dk_nGK.mutable_data_ptr(),
                              .dv_nGK = grad.dv_nGK.mutable_data_ptr(),
                              .num_rows = in.q_THK.size(0),
                              .num_keys = in.k_nGK.size(0),
                              .heads = b.heads,
                              .window = window,
                              .segments = static_cast<const cuda::GradSegment*>(b.segments.const_data_ptr()),
                              .tiles = static_cast<const cuda::GradTile*>(b.tiles.const_data_ptr()),
                              .items = static_cast<const cuda::GradItem*>(b.items.const_data_ptr()),
                              .num_tiles = b.num_tiles,
                              .num_items = b.num_items,
                              .scratch = scratch.mutable_data_ptr()},
                             stream()));
  return grad;
}

ExpandedGrad flash_backward(const ExpandedInputs& in, const CudaRows::Backward& b, int64_t window) {
  const Deterministic deterministic;
  const Tensor no_dropout = at::empty({2}, in.q_THK.options().dtype(at::kUInt64));
  // FlashAttention-2 counts as a window the keys before a row's own key; ours counts that one too.
  const bool has_window = window > 0 && window < b.max_k;
  const std::optional<int64_t> left = has_window ? std::optional(window - 1) : std::nullopt,
                               right = has_window ? std::optional<int64_t>(0) : std::nullopt;
  ExpandedGrad grad;
  std::tie(grad.dq_THK, grad.dk_nGK, grad.dv_nGK) = at::_flash_attention_backward(
      in.dout_THK, in.q_THK, in.k_nGK, in.v_nGK, in.out_THK, in.lse_TH.t().contiguous(), b.cu_q, b.cu_k, b.max_q,
      b.max_k, /*dropout_p=*/0.0, /*is_causal=*/true, no_dropout, no_dropout, /*scale=*/std::nullopt, left, right);
  return grad;
}

}  // namespace

Ops::AttentionGrad cuda_attention_backward(const Tensor& dout_THK, const Tensor& q_THK, const Tensor& out_THK,
                                           const Tensor& lse_TH, const Tensor& kv_layer, CudaRows& rows,
                                           int64_t window) {
  const int64_t T = q_THK.size(0), G = kv_layer.size(2), K = q_THK.size(2);
  const CudaRows::Backward& b = rows.backward(heads_of(q_THK, kv_layer));
  const int64_t num_expanded = b.slots.size(0);
  const at::TensorOptions options = q_THK.options();
  ExpandedGrad expanded;
  {
    const Tensor k_nGK = at::empty({num_expanded, G, K}, options), v_nGK = at::empty_like(k_nGK);
    check(cuda::gather_kv(paged(kv_layer), b.slots.const_data_ptr<int32_t>(), num_expanded, k_nGK.mutable_data_ptr(),
                          v_nGK.mutable_data_ptr(), stream()));
    const ExpandedInputs inputs = {dout_THK, q_THK, k_nGK, v_nGK, out_THK, lse_TH};
    expanded = b.segments.defined() ? own_backward(inputs, b, window) : flash_backward(inputs, b, window);
  }
  Ops::AttentionGrad grad = {.dq_THK = std::move(expanded.dq_THK),
                             .dk_TGK = at::empty({T, G, K}, options),
                             .dv_TGK = at::empty({T, G, K}, options)};
  check(cuda::reduce_kv_grad({.dk_nGK = expanded.dk_nGK.const_data_ptr(),
                              .dv_nGK = expanded.dv_nGK.const_data_ptr(),
                              .token_offsets = b.token_offsets.const_data_ptr<int32_t>(),
                              .rows_of_token = b.rows_of_token.const_data_ptr<int32_t>(),
                              .num_tokens = T,
                              .num_kv_heads = G,
                              .head_dim = K,
                              .dk_TGK = grad.dk_TGK.mutable_data_ptr(),
                              .dv_TGK = grad.dv_TGK.mutable_data_ptr()},
                             stream()));
  return grad;
}

}  // namespace tandem::device
