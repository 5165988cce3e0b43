#include "device/cuda/cuda_ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/cuda/attention/cuda_attention.h"
#include "device/cuda/dropout.h"
#include "device/cuda/embedding.h"
#include "device/cuda/experts/cuda_experts.h"
#include "device/cuda/graph.h"
#include "device/cuda/logprob.h"
#include "device/cuda/memory/cuda_allocator_hook.h"
#include "device/cuda/optimizer.h"
#include "device/cuda/products/cuda_quantised.h"
#include "device/cuda/products/few_rows.h"
#include "device/cuda/products/linear_plans.h"
#include "device/cuda/products/some_rows.h"
#include "device/cuda/products/sum_parts.h"
#include "device/cuda/rowwise.h"
#include "device/cuda/sample.h"
#include "device/cuda/staging.h"
#include "device/rope_frequencies.h"

namespace tandem::device {
namespace {

using cuda::bf16;
using cuda::Product;
using cuda::ProductKind;

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

void check(cudaError_t error, const char* operation) {
  TANDEM_ENV_CHECK(error == cudaSuccess, "the GPU's", operation, "failed:", cudaGetErrorString(error));
}

bool is_bfloat16(const Tensor& x) { return x.scalar_type() == at::kBFloat16; }
const bf16* data(const Tensor& x) { return static_cast<const bf16*>(x.const_data_ptr()); }
bf16* mutable_data(const Tensor& x) { return static_cast<bf16*>(x.mutable_data_ptr()); }
bool is_aligned(const Tensor& x) { return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0; }

// Returns whether the row-wise kernels take all of these tensors, with rows of `width`.
template <typename... Tensors>
bool are_vectors(int64_t width, const Tensors&... x) {
  return cuda::supports_width(width) && (... && (is_bfloat16(x) && is_aligned(x)));
}

float* floats(const Tensor& x) { return x.defined() ? x.mutable_data_ptr<float>() : nullptr; }

class CudaFetch final : public Ops::Fetch {
 public:
  CudaFetch(const Tensor& x, std::shared_ptr<cuda::PinnedBuffer> buffer)
      : host_(at::empty(x.sizes(), at::TensorOptions(x.scalar_type()))), buffer_(std::move(buffer)) {}

  const Tensor& wait() override {
    if (buffer_ == nullptr) return host_;
    buffer_->wait();
    std::memcpy(host_.mutable_data_ptr(), buffer_->data(), host_.nbytes());
    buffer_ = nullptr;
    return host_;
  }

 private:
  const Tensor host_;
  std::shared_ptr<cuda::PinnedBuffer> buffer_;  // null: the result is in host_
};

// The graph of `work`, captured on a stream that no other work waits for. Memory that it allocates meanwhile comes from
// the arena, whose owner keeps it free, or from a pool of LibTorch's own allocator that is this graph's alone.
class CudaRecording final : public Ops::Recording {
 public:
  CudaRecording(c10::DeviceIndex device, const std::function<void()>& work)
      : pool_(device), graph_([&] {
          const c10::cuda::CUDAStream capturing = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device);
          const c10::cuda::CUDAStreamGuard guard(capturing);
          const GraphPool::Scope allocations(pool_, capturing.stream());
          return cuda::Graph(capturing.stream(), work);
        }()) {}

  void replay() override { graph_.launch(stream()); }

 private:
  GraphPool pool_;
  cuda::Graph graph_;
};

class CudaOps final : public Ops {
 public:
  CudaOps(std::unique_ptr<Ops> aten, std::string name) : aten_(std::move(aten)), name_(std::move(name)) {}

  std::string name() const override { return name_; }
  int num_threads() const override { return aten_->num_threads(); }
  at::Device device() const override { return aten_->device(); }
  bool runs_ahead() const override { return true; }
  bool can_record(at::ScalarType dtype, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim) const override {
    return dtype == at::kBFloat16 && cuda::supports_attention(head_dim, num_heads, num_kv_heads);
  }
  bool can_record_experts(int64_t num_experts, int64_t chosen, int64_t hidden, int64_t width) const override {
    return cuda::can_record_experts(num_experts, chosen, hidden, width);
  }

  AttentionRows prepare(const AttentionRows& rows) const override {
    AttentionRows prepared = rows;
    prepared.prepared = std::make_shared<CudaRows>(rows, device(), staging_);
    return prepared;
  }
  void refill(AttentionRows& prepared, const AttentionRows& rows) const override {
    std::shared_ptr<const void> made = std::move(prepared.prepared);
    prepared = rows;
    prepared.prepared = std::move(made);
    made_of(prepared)->refill(rows);
  }
  int64_t prepared_bytes(int64_t num_rows, int64_t num_sequences, int64_t max_blocks) const override {
    return cuda::AttentionWork(num_rows, num_sequences, max_blocks).num_words * static_cast<int64_t>(sizeof(int32_t));
  }

  Tensor linear(const Tensor& x_TK, const Tensor& w_NK, at::ScalarType out) const override {
    if (!is_bfloat16(x_TK)) return aten_->linear(x_TK, w_NK, out);
    const Tensor y_TN = at::empty({x_TK.size(0), w_NK.size(0)}, x_TK.options().dtype(out));
    multiply(ProductKind::kForward, x_TK, w_NK, Tensor(), y_TN);
    return y_TN;
  }
  Tensor dequantise(const QuantisedMatrix& w_NK) const override {
    const Tensor weights_NK = cuda::room_for(w_NK);
    constexpr size_t kMost = cuda::QuantisedWeight::kMostParts;
    for (size_t i = 0; i < w_NK.parts.size(); i += kMost) {
      const cuda::QuantisedWeight some = cuda::parts_of(w_NK, i, std::min(kMost, w_NK.parts.size() - i));
      bf16* const out = mutable_data(weights_NK) + w_NK.parts[i].row_begin * w_NK.num_columns();
      check(cuda::dequantise(some, out, stream()), "quantised weights");
    }
    return weights_NK;
  }
  Tensor linear_quantised(const Tensor& x_TK, const QuantisedMatrix& w_NK, at::ScalarType out) const override {
    const Tensor y_TN = at::empty({x_TK.size(0), w_NK.num_rows()}, x_TK.options().dtype(out));
    multiply_quantised(x_TK, w_NK, Tensor(), y_TN);
    return y_TN;
  }
  Tensor linear_quantised_add(const Tensor& x_TK, const QuantisedMatrix& w_NK,
                              const Tensor& residual_TN) const override {
    const Tensor y_TN = at::empty_like(residual_TN);
    multiply_quantised(x_TK, w_NK, residual_TN, y_TN);
    return y_TN;
  }
  Tensor linear_add(const Tensor& x_TK, const Tensor& w_NK, const Tensor& residual_TN) const override {
    if (!is_bfloat16(x_TK)) return aten_->linear_add(x_TK, w_NK, residual_TN);
    const Tensor y_TN = at::empty_like(residual_TN);
    multiply(ProductKind::kForward, x_TK, w_NK, residual_TN, y_TN);
    return y_TN;
  }
  Tensor linear_grad_input(const Tensor& dy_TN, const Tensor& w_NK, at::ScalarType out) const override {
    if (!is_bfloat16(dy_TN) || !is_bfloat16(w_NK)) return aten_->linear_grad_input(dy_TN, w_NK, out);
    const Tensor dx_TK = at::empty({dy_TN.size(0), w_NK.size(1)}, w_NK.options().dtype(out));
    multiply(ProductKind::kGradInput, dy_TN, w_NK, Tensor(), dx_TK);
    return dx_TK;
  }
  void linear_grad_weight(const Tensor& dy_TN, const Tensor& x_TK, const Tensor& dw_NK,
                          GradientUse use) const override {
    if (!is_bfloat16(dy_TN) || !is_bfloat16(x_TK)) return aten_->linear_grad_weight(dy_TN, x_TK, dw_NK, use);
    multiply(ProductKind::kGradWeight, dy_TN, x_TK, use == GradientUse::kAdd ? dw_NK : Tensor(), dw_NK);
  }

  Tensor embedding(const Tensor& table_VE, const Tensor& ids_T) const override {
    return embedding_part(table_VE, 0, ids_T);
  }
  void embedding_backward(const Tensor& dy_TE, const Tensor& ids_T, const Tensor& dtable_VE) const override {
    embedding_part_backward(dy_TE, 0, ids_T, dtable_VE);
  }
  Tensor embedding_part(const Tensor& table_RE, int64_t first, const Tensor& ids_T) const override {
    const int64_t T = ids_T.size(0), E = table_RE.size(1);
    const cuda::TableRows table_rows = {.first = first, .count = table_RE.size(0)};
    const Tensor rows_TE = at::empty({T, E}, table_RE.options());
    const int32_t* const ids = ids_T.const_data_ptr<int32_t>();
    if (is_bfloat16(table_RE)) {
      check(cuda::embedding(data(table_RE), table_rows, ids, T, E, mutable_data(rows_TE), stream()), "embedding");
    } else {
      check(cuda::embedding(table_RE.const_data_ptr<float>(), table_rows, ids, T, E, rows_TE.mutable_data_ptr<float>(),
                            stream()),
            "embedding");
    }
    return rows_TE;
  }
  void embedding_part_backward(const Tensor& dy_TE, int64_t first, const Tensor& ids_T,
                               const Tensor& dtable_RE) const override {
    const int64_t T = ids_T.size(0), E = dtable_RE.size(1);
    const cuda::TableRows table_rows = {.first = first, .count = dtable_RE.size(0)};
    const Tensor scratch =
        at::empty({cuda::embedding_backward_scratch(T)}, at::TensorOptions(at::kByte).device(device()));
    const int32_t* const ids = ids_T.const_data_ptr<int32_t>();
    float* const dtable = dtable_RE.mutable_data_ptr<float>();
    const auto run = [&](const auto* dy) {
      check(cuda::embedding_backward(dy, table_rows, ids, T, E, dtable, scratch.mutable_data_ptr(), stream()),
            "gradient of the embedding");
    };
    if (is_bfloat16(dy_TE)) {
      run(data(dy_TE));
    } else {
      run(dy_TE.const_data_ptr<float>());
    }
  }

  void sum_parts(const std::vector<Tensor>& parts, const Tensor& residual, const Tensor& sum) const override {
    const auto fits = [&](const Tensor& x) { return x.numel() == sum.numel() && is_aligned(x); };
    if (std::ssize(parts) > cuda::kMostParts || sum.numel() % 8 != 0 || !fits(sum) ||
        !std::ranges::all_of(parts, fits) || (residual.defined() && !fits(residual))) {
      return aten_->sum_parts(parts, residual, sum);
    }
    cuda::Parts all = {.count = static_cast<int>(std::ssize(parts)), .is_float32 = !is_bfloat16(parts[0]), .data = {}};
    std::ranges::transform(parts, all.data, [](const Tensor& part) { return part.const_data_ptr(); });
    check(cuda::sum_parts(all, residual.defined() ? residual.const_data_ptr() : nullptr, sum.mutable_data_ptr(),
                          !is_bfloat16(sum), sum.numel(), stream()),
          "sum over ranks");
  }

  Tensor add(const Tensor& a_TE, const Tensor& b_TE) const override {
    if (!are_vectors(8, a_TE, b_TE)) return aten_->add(a_TE, b_TE);
    const Tensor sum_TE = at::empty_like(a_TE);
    check(cuda::add(data(a_TE), data(b_TE), mutable_data(sum_TE), a_TE.numel(), stream()), "addition");
    return sum_TE;
  }
  void add_bias(const Tensor& y_TN, const Tensor& bias_N) const override {
    const int64_t N = y_TN.size(1);
    if (!are_vectors(N, y_TN, bias_N)) return aten_->add_bias(y_TN, bias_N);
    check(cuda::add_bias(mutable_data(y_TN), data(bias_N), y_TN.size(0), N, stream()), "bias");
  }
  void add_bias_backward(const Tensor& dy_TN, const Tensor& dbias_N) const override {
    const int64_t T = dy_TN.size(0), N = dy_TN.size(1);
    if (!are_vectors(N, dy_TN)) return aten_->add_bias_backward(dy_TN, dbias_N);
    const Tensor scratch = partials(dy_TN, N);
    check(cuda::add_bias_backward(data(dy_TN), dbias_N.mutable_data_ptr<float>(), scratch.mutable_data_ptr<float>(), T,
                                  N, stream()),
          "gradient of a bias");
  }

  // The kernels of norms have no offset.
  Tensor rms_norm(const Tensor& x_TE, const Tensor& w_E, const Norm& norm) const override {
    const int64_t E = w_E.size(0);
    if (!are_vectors(E, x_TE, w_E) || norm.offset != 0.0) return aten_->rms_norm(x_TE, w_E, norm);
    const Tensor y_TE = at::empty_like(x_TE);
    check(cuda::rms_norm(data(x_TE), data(w_E), mutable_data(y_TE), x_TE.size(0), E, norm.eps, stream()), "norm");
    return y_TE;
  }
  Tensor rms_norm_backward(const Tensor& dy_TE, const Tensor& x_TE, const Tensor& w_E, const Norm& norm,
                           const Tensor& dw_E) const override {
    const int64_t E = w_E.size(0);
    if (!are_vectors(E, dy_TE, x_TE, w_E) || norm.offset != 0.0)
      return aten_->rms_norm_backward(dy_TE, x_TE, w_E, norm, dw_E);
    const Tensor dx_TE = at::empty_like(x_TE), scratch = partials(x_TE, E);
    check(cuda::rms_norm_backward(data(dy_TE), data(x_TE), data(w_E), mutable_data(dx_TE), floats(dw_E),
                                  scratch.mutable_data_ptr<float>(), x_TE.size(0), E, norm.eps, stream()),
          "gradient of a norm");
    return dx_TE;
  }

  Qkv qk_norm_rope(const Tensor& qkv_TN, const Tensor& q_norm_K, const Tensor& k_norm_K, const Tensor& positions_T,
                   const QkvShape& shape) const override {
    if (!are_heads(qkv_TN, shape) || shape.norm_offset != 0.0)
      return aten_->qk_norm_rope(qkv_TN, q_norm_K, k_norm_K, positions_T, shape);
    return split(qkv_TN, data(q_norm_K), data(k_norm_K), positions_T, shape);
  }
  Tensor qk_norm_rope_backward(const Tensor& dq_THK, const Tensor& dk_TGK, const Tensor& dv_TGK, const Tensor& qkv_TN,
                               const Tensor& q_norm_K, const Tensor& k_norm_K, const Tensor& positions_T,
                               const QkvShape& shape, const Tensor& dq_norm_K, const Tensor& dk_norm_K) const override {
    if (!are_heads(qkv_TN, shape) || shape.norm_offset != 0.0) {
      return aten_->qk_norm_rope_backward(dq_THK, dk_TGK, dv_TGK, qkv_TN, q_norm_K, k_norm_K, positions_T, shape,
                                          dq_norm_K, dk_norm_K);
    }
    const Tensor dqkv_TN = at::empty_like(qkv_TN), scratch = partials(qkv_TN, 2 * shape.head_dim);
    check(cuda::qk_norm_rope_backward(data(dq_THK), data(dk_TGK), data(dv_TGK), data(qkv_TN), data(q_norm_K),
                                      data(k_norm_K), positions_T.const_data_ptr<int32_t>(), mutable_data(dqkv_TN),
                                      floats(dq_norm_K), floats(dk_norm_K), scratch.mutable_data_ptr<float>(),
                                      qkv_TN.size(0), layout(shape), stream()),
          "gradient of the rotation");
    return dqkv_TN;
  }
  Qkv rope(const Tensor& qkv_TN, const Tensor& positions_T, const QkvShape& shape) const override {
    if (!are_heads(qkv_TN, shape)) return aten_->rope(qkv_TN, positions_T, shape);
    return split(qkv_TN, nullptr, nullptr, positions_T, shape);
  }
  Tensor rope_backward(const Tensor& dq_THK, const Tensor& dk_TGK, const Tensor& dv_TGK, const Tensor& positions_T,
                       const QkvShape& shape) const override {
    if (!are_heads(dq_THK, shape)) return aten_->rope_backward(dq_THK, dk_TGK, dv_TGK, positions_T, shape);
    const int64_t T = dq_THK.size(0), width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
    const Tensor dqkv_TN = at::empty({T, width}, dq_THK.options());
    check(cuda::qk_norm_rope_backward(data(dq_THK), data(dk_TGK), data(dv_TGK), nullptr, nullptr, nullptr,
                                      positions_T.const_data_ptr<int32_t>(), mutable_data(dqkv_TN), nullptr, nullptr,
                                      nullptr, T, layout(shape), stream()),
          "gradient of the rotation");
    return dqkv_TN;
  }

  Tensor dropout(const Tensor& x_TK, const Tensor& row_keys_T, const Dropout& dropout) const override {
    const int64_t T = x_TK.size(0), K = x_TK.size(1);
    TANDEM_CHECK_EQ(row_keys_T.numel(), T);
    const Tensor y_TK = at::empty_like(x_TK);
    const auto* const keys = row_keys_T.const_data_ptr<int64_t>();
    check(x_TK.scalar_type() == at::kFloat
              ? cuda::drop(dropout, x_TK.const_data_ptr<float>(), keys, y_TK.mutable_data_ptr<float>(), T, K, stream())
              : cuda::drop(dropout, data(x_TK), keys, mutable_data(y_TK), T, K, stream()),
          "dropout");
    return y_TK;
  }

  Tensor silu_mul(const Tensor& gate_up_T2F) const override {
    const int64_t T = gate_up_T2F.size(0), F = gate_up_T2F.size(1) / 2;
    if (!are_vectors(F, gate_up_T2F)) return aten_->silu_mul(gate_up_T2F);
    const Tensor out_TF = at::empty({T, F}, gate_up_T2F.options());
    check(cuda::silu_mul(data(gate_up_T2F), mutable_data(out_TF), T, F, stream()), "silu");
    return out_TF;
  }
  Tensor silu_mul_backward(const Tensor& dy_TF, const Tensor& gate_up_T2F) const override {
    const int64_t T = gate_up_T2F.size(0), F = gate_up_T2F.size(1) / 2;
    if (!are_vectors(F, dy_TF, gate_up_T2F)) return aten_->silu_mul_backward(dy_TF, gate_up_T2F);
    const Tensor dgate_up_T2F = at::empty_like(gate_up_T2F);
    check(cuda::silu_mul_backward(mutable_data(dy_TF), data(gate_up_T2F), mutable_data(dgate_up_T2F), T, F, stream()),
          "gradient of silu");
    return dgate_up_T2F;
  }

  // These have no kernels.
  Tensor gelu_mul(const Tensor& gate_up_T2F) const override { return aten_->gelu_mul(gate_up_T2F); }
  Tensor gelu_mul_backward(const Tensor& dy_TF, const Tensor& gate_up_T2F) const override {
    return aten_->gelu_mul_backward(dy_TF, gate_up_T2F);
  }

  Routing route(const Tensor& logits_TX, const RouteRule& rule) const override {
    return experts_.route(logits_TX, rule);
  }
  Tensor route_backward(const Tensor& dweights_TC, const Tensor& logits_TX, const Routing& routing,
                        const RouteRule& rule, at::ScalarType out) const override {
    return experts_.route_backward(dweights_TC, logits_TX, routing, rule, out);
  }
  Tensor linear_of_experts(const Tensor& x, RowsAre x_rows, const Tensor& w_XNK, const Routing& routing,
                           at::ScalarType out) const override {
    return experts_.linear(x, x_rows, w_XNK, routing, out);
  }
  Tensor linear_of_experts_grad_input(const Tensor& dy, RowsAre dy_rows, const Tensor& w_XNK, const Routing& routing,
                                      at::ScalarType out) const override {
    return experts_.linear_grad_input(dy, dy_rows, w_XNK, routing, out);
  }
  Tensor linear_of_experts_quantised(const Tensor& x, RowsAre x_rows, const QuantisedMatrix& w_XNK,
                                     const Routing& routing, at::ScalarType out) const override {
    return experts_.linear_quantised(x, x_rows, w_XNK, routing, out);
  }
  Tensor linear_of_experts_quantised_grad_input(const Tensor& dy, RowsAre dy_rows, const QuantisedMatrix& w_XNK,
                                                const Routing& routing, at::ScalarType out) const override {
    return experts_.linear_quantised_grad_input(dy, dy_rows, w_XNK, routing, out);
  }
  void linear_of_experts_grad_weight(const Tensor& dy, RowsAre dy_rows, const Tensor& x, RowsAre x_rows,
                                     const Tensor& dw_XNK, const Routing& routing, GradientUse use) const override {
    experts_.linear_grad_weight(dy, dy_rows, x, x_rows, dw_XNK, routing, use);
  }
  Tensor sum_of_experts(const Tensor& y_PE, const Tensor& weights_TC, const Routing& routing, const Tensor& residual_TE,
                        at::ScalarType out) const override {
    return experts_.sum(y_PE, weights_TC, routing, residual_TE, out);
  }
  ExpertsMlp mlp_of_experts(const Tensor& x_TE, const Tensor& gate_up_X2FE, const Tensor& down_XEF,
                            const Routing& routing, const Tensor& residual_TE, at::ScalarType out,
                            bool keeps_gate_up) const override {
    return experts_.mlp(x_TE, gate_up_X2FE, down_XEF, routing, residual_TE, out, keeps_gate_up);
  }
  void results_of_experts(const Tensor& x_TE, const Tensor& gate_up_X2FE, const Tensor& down_XEF,
                          const Routing& routing, ExpertRange range, const Tensor& y_PE) const override {
    experts_.results(x_TE, gate_up_X2FE, down_XEF, routing, range, y_PE);
  }
  WeightedSilu weighted_silu_backward(const Tensor& da_PF, const Tensor& gate_up_P2F,
                                      const Routing& routing) const override {
    return experts_.weighted_silu_backward(da_PF, gate_up_P2F, routing);
  }

  void kv_append(const Tensor& kv_layer, const Tensor& k_TGK, const Tensor& v_TGK, const Tensor& tokens,
                 const Tensor& slot_mapping) const override {
    if (!has_cuda_attention(k_TGK, kv_layer)) return aten_->kv_append(kv_layer, k_TGK, v_TGK, tokens, slot_mapping);
    cuda_kv_append(kv_layer, k_TGK, v_TGK, tokens, slot_mapping);
  }
  Tensor paged_attention(const Tensor& q_THK, const Tensor& kv_layer, const AttentionRows& rows,
                         const Tensor& lse_TH) const override {
    const std::shared_ptr<CudaRows> made = made_of(rows);
    if (has_cuda_attention(q_THK, kv_layer)) return cuda_attention(q_THK, kv_layer, *made, rows.window, lse_TH);
    return aten_->paged_attention(q_THK, kv_layer, made->prepared_by(*aten_, rows.window), lse_TH);
  }
  AttentionGrad attention_backward(const Tensor& dout_THK, const Tensor& q_THK, const Tensor& out_THK,
                                   const Tensor& lse_TH, const Tensor& kv_layer,
                                   const AttentionRows& rows) const override {
    const std::shared_ptr<CudaRows> made = made_of(rows);
    if (has_cuda_attention(q_THK, kv_layer)) {
      return cuda_attention_backward(dout_THK, q_THK, out_THK, lse_TH, kv_layer, *made, rows.window);
    }
    return aten_->attention_backward(dout_THK, q_THK, out_THK, lse_TH, kv_layer,
                                     made->prepared_by(*aten_, rows.window));
  }

  // Logits are float32 whatever the model's dtype, so these kernels serve every model.
  void logprob(const Tensor& logits_RV, const Tensor& targets_R, double temperature, const Tensor& logp_R,
               const Tensor& entropy_R, const Tensor& lse_R) const override {
    check(cuda::logprob(logits_RV.const_data_ptr<float>(), targets_R.const_data_ptr<int32_t>(), logits_RV.size(0),
                        logits_RV.size(1), static_cast<float>(1.0 / temperature), logp_R.mutable_data_ptr<float>(),
                        floats(entropy_R), lse_R.mutable_data_ptr<float>(), stream()),
          "log-probabilities");
  }
  // This is for bfloat16, since a model of float32 multiplies these in float32 and knows it by `logits_RV`'s own
  // gradient.
  Tensor logprob_backward(const Tensor& logits_RV, const Tensor& targets_R, double temperature, const Tensor& dlogp_R,
                          const Tensor& dentropy_R, const Tensor& entropy_R, const Tensor& lse_R,
                          at::ScalarType dtype) const override {
    const auto run = [&]<typename Gradient>(Gradient* gradient) {
      check(cuda::logprob_backward(logits_RV.const_data_ptr<float>(), targets_R.const_data_ptr<int32_t>(),
                                   lse_R.const_data_ptr<float>(), dlogp_R.const_data_ptr<float>(), floats(dentropy_R),
                                   floats(entropy_R), logits_RV.size(0), logits_RV.size(1),
                                   static_cast<float>(1.0 / temperature), gradient, stream()),
            "gradient of the log-probabilities");
    };
    if (dtype != at::kBFloat16) {
      run(logits_RV.mutable_data_ptr<float>());
      return logits_RV;
    }
    const Tensor dlogits_RV = at::empty(logits_RV.sizes(), logits_RV.options().dtype(dtype));
    run(mutable_data(dlogits_RV));
    return dlogits_RV;
  }

  void sample(const Tensor& logits_RV, const Tensor& draws, const Tensor& token_n, const Tensor& logprob_n,
              const Tensor& behavior_n) const override {
    check(cuda::sample(logits_RV.const_data_ptr<float>(), static_cast<const Draw*>(draws.const_data_ptr()),
                       token_n.size(0), logits_RV.size(1), token_n.mutable_data_ptr<int32_t>(),
                       logprob_n.mutable_data_ptr<float>(), behavior_n.mutable_data_ptr<float>(), stream()),
          "sampling");
  }
  void take_drawn(const Tensor& ids_T, const Tensor& drawn_n) const override {
    check(
        cuda::take_drawn(ids_T.mutable_data_ptr<int32_t>(), ids_T.size(0), drawn_n.const_data_ptr<int32_t>(), stream()),
        "reading of drawn tokens");
  }

  void adamw(const Tensor& weight, const Tensor& master, const Tensor& grad, const Tensor& m, const Tensor& v,
             const AdamW& p) const override {
    const cuda::AdamwParams params =
        cuda::adamw_params(p.lr, p.beta1, p.beta2, p.eps, p.weight_decay, p.grad_scale, p.step);
    const auto run = [&](auto* weights) {
      check(cuda::adamw(weights, master.mutable_data_ptr<float>(), grad.const_data_ptr<float>(),
                        m.mutable_data_ptr<float>(), v.mutable_data_ptr<float>(), master.numel(), params, stream()),
            "AdamW");
    };
    if (is_bfloat16(weight)) {
      run(mutable_data(weight));
    } else {
      run(weight.mutable_data_ptr<float>());
    }
  }
  std::vector<double> sums_of_squares(const Tensor& x, int64_t block_elements) const override {
    if (x.numel() == 0) return {};
    const int64_t count = (x.numel() + block_elements - 1) / block_elements;
    const Tensor sums = at::empty({count}, x.options().dtype(at::kDouble));
    check(cuda::sums_of_squares(x.const_data_ptr<float>(), x.numel(), block_elements, sums.mutable_data_ptr<double>(),
                                stream()),
          "sums of squares");
    const std::unique_ptr<Fetch> host = fetch(sums);
    const double* const first = host->wait().const_data_ptr<double>();
    return {first, first + count};
  }

  void send(const Tensor& host, const Tensor& on_device) const override {
    staging_.to_device(host.const_data_ptr(), on_device.mutable_data_ptr(), host.nbytes(), stream());
  }
  std::unique_ptr<Fetch> fetch(const Tensor& x) const override {
    return std::make_unique<CudaFetch>(x, staging_.to_host(x.const_data_ptr(), x.nbytes(), stream()));
  }
  std::unique_ptr<Recording> record(std::function<void()> work) const override {
    return std::make_unique<CudaRecording>(device().index(), work);
  }

 private:
  std::shared_ptr<CudaRows> made_of(const AttentionRows& rows) const {
    const std::shared_ptr<const void> made = rows.prepared != nullptr ? rows.prepared : prepare(rows).prepared;
    return std::static_pointer_cast<CudaRows>(std::const_pointer_cast<void>(made));
  }

  // The kernel of few rows multiplies with the codes themselves. Where x has more rows than it takes, bfloat16 weights
  // are made of all codes first, and their product is the usual one.
  void multiply_quantised(const Tensor& x_TK, const QuantisedMatrix& w_NK, const Tensor& added_TN,
                          const Tensor& y_TN) const {
    const int64_t T = x_TK.size(0), N = w_NK.num_rows(), K = w_NK.num_columns();
    TANDEM_CHECK(is_bfloat16(x_TK) && x_TK.size(1) == K, "rows of another kind than the matrix");
    const cuda::QuantisedWeight weight = cuda::parts_of(w_NK, 0, w_NK.parts.size());
    if (!is_aligned(x_TK) || T > cuda::most_rows_with_codes(weight, N, K))
      return multiply(ProductKind::kForward, x_TK, dequantise(w_NK), added_TN, y_TN);
    const cuda::FewRowsProduct few = {.x = data(x_TK),
                                      .added = added_TN.defined() ? added_TN.const_data_ptr() : nullptr,
                                      .out = y_TN.mutable_data_ptr(),
                                      .is_float32 = y_TN.scalar_type() == at::kFloat,
                                      .T = T,
                                      .N = N,
                                      .K = K};
    check(cuda::linear_of_few_rows(few, weight, stream()), "product of few rows with codes");
  }

  void multiply(ProductKind kind, const Tensor& left, const Tensor& right, const Tensor& added,
                const Tensor& out) const {
    const int64_t N = kind == ProductKind::kForward ? right.size(0) : left.size(1), K = right.size(1);
    const bool is_forward = kind == ProductKind::kForward && is_aligned(left) && is_aligned(right);
    const bool are_few = is_forward && cuda::supports_few_rows(left.size(0), N, K);
    const bool are_some = is_forward && !are_few && cuda::supports_some_rows(left.size(0), N, K);
    if (are_few || are_some) {
      // Nothing that is recorded writes weights. Outside of recordings, the kernel before may be the one that did.
      const cuda::FewRowsProduct few = {.x = data(left),
                                        .w = data(right),
                                        .added = added.defined() ? added.const_data_ptr() : nullptr,
                                        .out = out.mutable_data_ptr(),
                                        .is_float32 = out.scalar_type() == at::kFloat,
                                        .T = left.size(0),
                                        .N = N,
                                        .K = K,
                                        .weight_is_old = cuda::is_capturing(stream())};
      return check(are_few ? cuda::linear_of_few_rows(few, stream()) : cuda::linear_of_some_rows(few, stream()),
                   "product of few rows");
    }
    const Product product = {.kind = kind,
                             .T = left.size(0),
                             .N = N,
                             .K = K,
                             .is_float32 = out.scalar_type() == at::kFloat,
                             .adds = added.defined()};
    plans_.run(product, data(left), data(right), added.defined() ? added.const_data_ptr() : nullptr,
               out.mutable_data_ptr(), stream());
  }

  static Tensor partials(const Tensor& rows, int64_t width) {
    return at::empty({cuda::num_partials(rows.size(0)), width}, rows.options().dtype(at::kFloat));
  }

  static bool are_heads(const Tensor& x, const QkvShape& shape) {
    return are_vectors(8, x) && cuda::supports_head_dim(shape.head_dim);
  }
  static cuda::QkvLayout layout(const QkvShape& shape) {
    cuda::QkvLayout result = {.num_heads = shape.num_heads,
                              .num_kv_heads = shape.num_kv_heads,
                              .head_dim = shape.head_dim,
                              .frequencies = {},
                              .eps = shape.eps};
    const std::vector<float> frequencies = rope_frequencies(shape.head_dim, shape.rope_theta, shape.rope_factors);
    std::ranges::copy(frequencies, result.frequencies.values);
    return result;
  }
  Qkv split(const Tensor& qkv_TN, const bf16* q_norm, const bf16* k_norm, const Tensor& positions_T,
            const QkvShape& shape) const {
    const int64_t T = qkv_TN.size(0), H = shape.num_heads, G = shape.num_kv_heads, K = shape.head_dim;
    const Qkv result = {at::empty({T, H, K}, qkv_TN.options()), at::empty({T, G, K}, qkv_TN.options()),
                        at::empty({T, G, K}, qkv_TN.options())};
    check(cuda::qk_norm_rope(data(qkv_TN), q_norm, k_norm, positions_T.const_data_ptr<int32_t>(),
                             mutable_data(result.q_THK), mutable_data(result.k_TGK), mutable_data(result.v_TGK), T,
                             layout(shape), stream()),
          "rotation");
    return result;
  }

  const std::unique_ptr<Ops> aten_;
  const std::string name_;
  mutable cuda::LinearPlans plans_;
  mutable cuda::Staging staging_;
  mutable CudaExperts experts_{*this};
};

}  // namespace

std::unique_ptr<Ops> make_cuda_ops(std::unique_ptr<Ops> aten, std::string name) {
  return std::make_unique<CudaOps>(std::move(aten), std::move(name));
}

}  // namespace tandem::device
