// device::Ops on the CPU: it turns tensors into pointers and gives rows to threads. The arithmetic is in the kernel
// table that fits the processor; docs/EXACTNESS.md says why each forward operation is exact.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/cpu/cpu_attention.h"
#include "device/cpu/cpu_experts.h"
#include "device/cpu/cpu_products.h"
#include "device/cpu/gemm.h"
#include "device/cpu/isa.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rope_table.h"
#include "device/cpu/tensor_data.h"
#include "device/host_sampling.h"
#include "device/ops.h"
#include "device/thread_pool.h"

namespace tandem::device {

namespace {

using cpu::Elem;
using cpu::elem_of;
using cpu::in;
using cpu::offset;

// A thread takes so many rows at a time in row-wise loops and for partial sums of weight gradients. The number is
// fixed, so that the sums do not depend on the number of threads.
constexpr int64_t kRowChunk = 64;
constexpr int64_t kMaxPartials = 64;

class CpuOps : public Ops {
 public:
  CpuOps(const cpu::KernelTable& table, int num_threads)
      : table_(table),
        threads_(num_threads),
        gemm_(table, threads_),
        products_(table, threads_, gemm_),
        experts_(table, threads_, gemm_),
        attention_(table, threads_),
        sampling_(threads_) {}

  std::string name() const override { return std::string("cpu/") + table_.name; }
  int num_threads() const override { return threads_.num_threads(); }

  Tensor linear(const Tensor& x_TK, const Tensor& w_NK, at::ScalarType out) const override {
    return products_.linear(x_TK, w_NK, out);
  }
  Tensor linear_grad_input(const Tensor& dy_TN, const Tensor& w_NK, at::ScalarType out) const override {
    return products_.linear_grad_input(dy_TN, w_NK, out);
  }
  void linear_grad_weight(const Tensor& dy_TN, const Tensor& x_TK, const Tensor& dw_NK,
                          GradientUse use) const override {
    products_.linear_grad_weight(dy_TN, x_TK, dw_NK, use);
  }
  Tensor dequantise(const QuantisedMatrix& w_NK) const override { return products_.dequantise(w_NK); }
  Tensor linear_quantised(const Tensor& x_TK, const QuantisedMatrix& w_NK, at::ScalarType out) const override {
    return products_.linear_quantised(x_TK, w_NK, out);
  }
  Tensor linear_quantised_grad_input(const Tensor& dy_TN, const QuantisedMatrix& w_NK,
                                     at::ScalarType out) const override {
    return products_.linear_quantised_grad_input(dy_TN, w_NK, out);
  }

  Tensor dropout(const Tensor& x_TK, const Tensor& row_keys_T, const Dropout& dropout) const override {
    const int64_t width = x_TK.size(1);
    TANDEM_CHECK_EQ(row_keys_T.numel(), x_TK.size(0));
    const auto* const keys = static_cast<const int64_t*>(in(row_keys_T));
    Tensor y_TK = at::empty_like(x_TK);
    const Elem elem = elem_of(x_TK);
    threads_.for_pieces(x_TK.size(0), kRowChunk, [&](int64_t begin, int64_t rows) {
      for (int64_t t = begin; t < begin + rows; ++t) {
        const auto key = static_cast<uint64_t>(keys[t]);
        const void* const x = offset(in(x_TK), t * width, elem);
        void* const y = offset(y_TK.data_ptr(), t * width, elem);
        if (elem == Elem::kF32) {
          drop_row(dropout, key, static_cast<const float*>(x), static_cast<float*>(y), width);
        } else {
          drop_row(dropout, key, static_cast<const at::BFloat16*>(x), static_cast<at::BFloat16*>(y), width);
        }
      }
    });
    return y_TK;
  }

  Tensor embedding(const Tensor& table_VE, const Tensor& ids_T) const override {
    const int64_t vocab = table_VE.size(0), rows = ids_T.numel();
    const int32_t* ids = static_cast<const int32_t*>(in(ids_T));
    for (int64_t t = 0; t < rows; ++t)
      TANDEM_CHECK(ids[t] >= 0 && ids[t] < vocab, "token id", ids[t], "outside the vocabulary of", vocab);
    return embedding_part(table_VE, 0, ids_T);
  }
  void embedding_backward(const Tensor& dy_TE, const Tensor& ids_T, const Tensor& dtable_VE) const override {
    embedding_part_backward(dy_TE, 0, ids_T, dtable_VE);
  }
  Tensor embedding_part(const Tensor& table_RE, int64_t first, const Tensor& ids_T) const override {
    const int64_t width = table_RE.size(1), count = table_RE.size(0), rows = ids_T.numel();
    Tensor out_TE = at::empty({rows, width}, table_RE.options());
    const Elem elem = elem_of(table_RE);
    const int32_t* ids = static_cast<const int32_t*>(in(ids_T));
    const int64_t row_bytes = width * (elem == Elem::kF32 ? 4 : 2);
    for (int64_t t = 0; t < rows; ++t) {
      char* row = offset(out_TE.data_ptr(), t * width, elem);
      if (ids[t] >= first && ids[t] < first + count) {
        std::copy_n(offset(in(table_RE), (ids[t] - first) * width, elem), row_bytes, row);
      } else {
        std::fill_n(row, row_bytes, char{0});
      }
    }
    return out_TE;
  }
  void embedding_part_backward(const Tensor& dy_TE, int64_t first, const Tensor& ids_T,
                               const Tensor& dtable_RE) const override {
    const int64_t width = dy_TE.size(1), count = dtable_RE.size(0), rows = ids_T.numel();
    const Elem elem = elem_of(dy_TE);
    const int32_t* ids = static_cast<const int32_t*>(in(ids_T));
    // Threads split the columns, so each table row is summed in the order of t.
    const int64_t parts = rows * width < 65536 ? 1 : num_threads();
    const int64_t part_width = ((width + parts - 1) / parts + 15) / 16 * 16;
    threads_.for_each(parts, 1, [&](int64_t part) {
      const int64_t begin = std::min(part * part_width, width), n = std::min(part_width, width - begin);
      for (int64_t t = 0; t < rows; ++t) {
        if (ids[t] < first || ids[t] >= first + count) continue;
        float* row = dtable_RE.data_ptr<float>() + (ids[t] - first) * width + begin;
        add_to(row, offset(in(dy_TE), t * width + begin, elem), n, elem);
      }
    });
  }

  void sum_parts(const std::vector<Tensor>& parts, const Tensor& residual, const Tensor& sum) const override {
    constexpr int64_t kPiece = 4096;
    const int64_t n = sum.numel();
    const Elem elem = elem_of(sum);
    in(sum);
    threads_.for_each((n + kPiece - 1) / kPiece, 4, [&](int64_t piece) {
      const int64_t begin = piece * kPiece, count = std::min(kPiece, n - begin);
      std::array<float, kPiece> total = {};
      for (size_t i = 0; i < parts.size(); ++i) {
        const char* part = offset(in(parts[i]), begin, elem_of(parts[i]));
        if (i == 0) {
          copy_as_floats(part, total.data(), count, elem_of(parts[i]));
        } else {
          add_to(total.data(), part, count, elem_of(parts[i]));
        }
      }
      char* to = offset(sum.data_ptr(), begin, elem);
      if (elem == Elem::kF32) {
        std::copy_n(total.data(), count, reinterpret_cast<float*>(to));
      } else {
        std::copy_n(total.data(), count, reinterpret_cast<at::BFloat16*>(to));
      }
      if (residual.defined()) table_.add(offset(in(residual), begin, elem), to, to, count, elem);
    });
  }

  Tensor add(const Tensor& a_TE, const Tensor& b_TE) const override {
    TANDEM_CHECK_EQ(a_TE.numel(), b_TE.numel());
    Tensor y_TE = at::empty_like(a_TE);
    const Elem elem = elem_of(a_TE);
    constexpr int64_t kPiece = 16384;
    threads_.for_pieces(a_TE.numel(), kPiece, [&](int64_t begin, int64_t count) {
      table_.add(offset(in(a_TE), begin, elem), offset(in(b_TE), begin, elem), offset(y_TE.data_ptr(), begin, elem),
                 count, elem);
    });
    return y_TE;
  }

  void add_bias(const Tensor& y_TN, const Tensor& bias_N) const override {
    const int64_t width = y_TN.size(1);
    TANDEM_CHECK_EQ(bias_N.numel(), width);
    const Elem elem = elem_of(y_TN);
    in(y_TN);
    threads_.for_pieces(y_TN.size(0), kRowChunk, [&](int64_t begin, int64_t rows) {
      for (int64_t t = begin; t < begin + rows; ++t) {
        void* row = offset(y_TN.data_ptr(), t * width, elem);
        table_.add(row, in(bias_N), row, width, elem);
      }
    });
  }
  void add_bias_backward(const Tensor& dy_TN, const Tensor& dbias_N) const override {
    const int64_t width = dy_TN.size(1);
    const Elem elem = elem_of(dy_TN);
    sum_over_chunks(dy_TN.size(0), {dbias_N}, [&](int64_t begin, int64_t rows, const std::vector<float*>& sums) {
      for (int64_t t = begin; t < begin + rows; ++t) add_to(sums[0], offset(in(dy_TN), t * width, elem), width, elem);
    });
  }

  Tensor rms_norm(const Tensor& x_TE, const Tensor& w_E, const Norm& norm) const override {
    Tensor y_TE = at::empty_like(x_TE);
    const cpu::NormArgs args{x_TE.size(-1), norm.eps, elem_of(x_TE), norm.offset};
    threads_.for_pieces(x_TE.size(0), kRowChunk, [&](int64_t begin, int64_t rows) {
      table_.rms_norm(offset(in(x_TE), begin * args.width, args.elem), in(w_E),
                      offset(y_TE.data_ptr(), begin * args.width, args.elem), rows, args);
    });
    return y_TE;
  }
  Tensor rms_norm_backward(const Tensor& dy_TE, const Tensor& x_TE, const Tensor& w_E, const Norm& norm,
                           const Tensor& dw_E) const override {
    Tensor dx_TE = at::empty_like(x_TE);
    const cpu::NormArgs args{x_TE.size(-1), norm.eps, elem_of(x_TE), norm.offset};
    sum_over_chunks(x_TE.size(0), {dw_E}, [&](int64_t begin, int64_t rows, const std::vector<float*>& sums) {
      const int64_t at = begin * args.width;
      table_.rms_norm_backward(offset(in(dy_TE), at, args.elem), offset(in(x_TE), at, args.elem), in(w_E),
                               offset(dx_TE.data_ptr(), at, args.elem), sums[0], rows, args);
    });
    return dx_TE;
  }

  Qkv qk_norm_rope(const Tensor& qkv_TN, const Tensor& q_norm_K, const Tensor& k_norm_K, const Tensor& positions_T,
                   const QkvShape& s) const override {
    const int64_t rows = qkv_TN.size(0);
    Qkv out = empty_qkv(qkv_TN, s);
    const cpu::RopeArgs args{s.num_heads, s.num_kv_heads, s.head_dim, s.eps, elem_of(qkv_TN), s.norm_offset};
    const std::vector<const float*> cos_sin = rope_rows(positions_T, s);
    const int64_t q_width = s.num_heads * s.head_dim, kv_width = s.num_kv_heads * s.head_dim;
    threads_.for_pieces(rows, kRowChunk, [&](int64_t begin, int64_t n) {
      table_.qk_norm_rope(offset(in(qkv_TN), begin * (q_width + 2 * kv_width), args.elem), in(q_norm_K), in(k_norm_K),
                          cos_sin.data() + begin, offset(out.q_THK.data_ptr(), begin * q_width, args.elem),
                          offset(out.k_TGK.data_ptr(), begin * kv_width, args.elem),
                          offset(out.v_TGK.data_ptr(), begin * kv_width, args.elem), n, args);
    });
    return out;
  }
  Tensor qk_norm_rope_backward(const Tensor& dq_THK, const Tensor& dk_TGK, const Tensor& dv_TGK, const Tensor& qkv_TN,
                               const Tensor& q_norm_K, const Tensor& k_norm_K, const Tensor& positions_T,
                               const QkvShape& s, const Tensor& dq_norm_K, const Tensor& dk_norm_K) const override {
    Tensor dqkv_TN = at::empty_like(qkv_TN);
    const cpu::RopeArgs args{s.num_heads, s.num_kv_heads, s.head_dim, s.eps, elem_of(qkv_TN), s.norm_offset};
    const std::vector<const float*> cos_sin = rope_rows(positions_T, s);
    const int64_t q_width = s.num_heads * s.head_dim, kv_width = s.num_kv_heads * s.head_dim;
    sum_over_chunks(
        qkv_TN.size(0), {dq_norm_K, dk_norm_K}, [&](int64_t begin, int64_t n, const std::vector<float*>& sums) {
          const int64_t at = begin * (q_width + 2 * kv_width);
          table_.qk_norm_rope_backward(
              offset(in(dq_THK), begin * q_width, args.elem), offset(in(dk_TGK), begin * kv_width, args.elem),
              offset(in(dv_TGK), begin * kv_width, args.elem), offset(in(qkv_TN), at, args.elem), in(q_norm_K),
              in(k_norm_K), cos_sin.data() + begin, offset(dqkv_TN.data_ptr(), at, args.elem), sums[0], sums[1], n,
              args);
        });
    return dqkv_TN;
  }

  Qkv rope(const Tensor& qkv_TN, const Tensor& positions_T, const QkvShape& s) const override {
    const int64_t rows = qkv_TN.size(0);
    Qkv out = empty_qkv(qkv_TN, s);
    const cpu::RopeArgs args{s.num_heads, s.num_kv_heads, s.head_dim, s.eps, elem_of(qkv_TN), s.norm_offset};
    const std::vector<const float*> cos_sin = rope_rows(positions_T, s);
    const int64_t q_width = s.num_heads * s.head_dim, kv_width = s.num_kv_heads * s.head_dim;
    threads_.for_pieces(rows, kRowChunk, [&](int64_t begin, int64_t n) {
      table_.rope(offset(in(qkv_TN), begin * (q_width + 2 * kv_width), args.elem), cos_sin.data() + begin,
                  offset(out.q_THK.data_ptr(), begin * q_width, args.elem),
                  offset(out.k_TGK.data_ptr(), begin * kv_width, args.elem),
                  offset(out.v_TGK.data_ptr(), begin * kv_width, args.elem), n, args);
    });
    return out;
  }
  Tensor rope_backward(const Tensor& dq_THK, const Tensor& dk_TGK, const Tensor& dv_TGK, const Tensor& positions_T,
                       const QkvShape& s) const override {
    const int64_t rows = dq_THK.size(0);
    const int64_t q_width = s.num_heads * s.head_dim, kv_width = s.num_kv_heads * s.head_dim;
    Tensor dqkv_TN = at::empty({rows, q_width + 2 * kv_width}, dq_THK.options());
    const cpu::RopeArgs args{s.num_heads, s.num_kv_heads, s.head_dim, s.eps, elem_of(dq_THK), s.norm_offset};
    const std::vector<const float*> cos_sin = rope_rows(positions_T, s);
    threads_.for_pieces(rows, kRowChunk, [&](int64_t begin, int64_t n) {
      table_.rope_backward(offset(in(dq_THK), begin * q_width, args.elem),
                           offset(in(dk_TGK), begin * kv_width, args.elem),
                           offset(in(dv_TGK), begin * kv_width, args.elem), cos_sin.data() + begin,
                           offset(dqkv_TN.data_ptr(), begin * (q_width + 2 * kv_width), args.elem), n, args);
    });
    return dqkv_TN;
  }

  Tensor silu_mul(const Tensor& gate_up_T2F) const override { return gated(table_.silu_mul, gate_up_T2F); }
  Tensor silu_mul_backward(const Tensor& dy_TF, const Tensor& gate_up_T2F) const override {
    return gated_backward(table_.silu_mul_backward, dy_TF, gate_up_T2F);
  }
  Tensor gelu_mul(const Tensor& gate_up_T2F) const override { return gated(table_.gelu_mul, gate_up_T2F); }
  Tensor gelu_mul_backward(const Tensor& dy_TF, const Tensor& gate_up_T2F) const override {
    return gated_backward(table_.gelu_mul_backward, dy_TF, gate_up_T2F);
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
  WeightedSilu weighted_silu_backward(const Tensor& da_PF, const Tensor& gate_up_P2F,
                                      const Routing& routing) const override {
    return experts_.weighted_silu_backward(da_PF, gate_up_P2F, routing);
  }

  void kv_append(const Tensor& kv_layer, const Tensor& k_TGK, const Tensor& v_TGK, const Tensor& tokens,
                 const Tensor& slot_mapping) const override {
    attention_.append(kv_layer, k_TGK, v_TGK, tokens, slot_mapping);
  }
  Tensor paged_attention(const Tensor& q_THK, const Tensor& kv_layer, const AttentionRows& rows,
                         const Tensor& lse_TH) const override {
    return attention_.forward(q_THK, kv_layer, rows, lse_TH);
  }
  AttentionGrad attention_backward(const Tensor& dout_THK, const Tensor& q_THK, const Tensor& out_THK,
                                   const Tensor& lse_TH, const Tensor& kv_layer,
                                   const AttentionRows& rows) const override {
    return attention_.backward(dout_THK, q_THK, out_THK, lse_TH, kv_layer, rows);
  }

  void logprob(const Tensor& logits_RV, const Tensor& targets_R, double temperature, const Tensor& logp_R,
               const Tensor& entropy_R, const Tensor& lse_R) const override {
    const int64_t vocab = logits_RV.size(1);
    const float* logits = static_cast<const float*>(in(logits_RV));
    const int32_t* targets = static_cast<const int32_t*>(in(targets_R));
    const auto inverse = static_cast<float>(1.0 / temperature);
    float* entropy = entropy_R.defined() ? entropy_R.data_ptr<float>() : nullptr;
    for (int64_t r = 0; r < logits_RV.size(0); ++r)
      TANDEM_CHECK(targets[r] < vocab, "target", targets[r], "outside the vocabulary of", vocab);
    threads_.for_each(logits_RV.size(0), std::max<int64_t>(1, 8192 / vocab), [&](int64_t r) {
      table_.logprob(logits + r * vocab, vocab, targets[r], inverse, logp_R.data_ptr<float>() + r,
                     entropy != nullptr ? entropy + r : nullptr, lse_R.data_ptr<float>() + r);
    });
  }
  Tensor logprob_backward(const Tensor& logits_RV, const Tensor& targets_R, double temperature, const Tensor& dlogp_R,
                          const Tensor& dentropy_R, const Tensor& entropy_R, const Tensor& lse_R,
                          at::ScalarType /*dtype*/) const override {
    const int64_t vocab = logits_RV.size(1);
    in(logits_RV);
    const int32_t* targets = static_cast<const int32_t*>(in(targets_R));
    const auto inverse = static_cast<float>(1.0 / temperature);
    const bool with_entropy = dentropy_R.defined();
    threads_.for_each(logits_RV.size(0), std::max<int64_t>(1, 8192 / vocab), [&](int64_t r) {
      table_.logprob_backward(
          logits_RV.data_ptr<float>() + r * vocab, vocab, targets[r], inverse, dlogp_R.const_data_ptr<float>()[r],
          with_entropy ? dentropy_R.const_data_ptr<float>()[r] : 0.0F,
          with_entropy ? entropy_R.const_data_ptr<float>()[r] : 0.0F, lse_R.const_data_ptr<float>()[r]);
    });
    return logits_RV;
  }

  void sample(const Tensor& logits_RV, const Tensor& draws, const Tensor& token_n, const Tensor& logprob_n,
              const Tensor& behavior_n) const override {
    sampling_.sample(*this, logits_RV, draws, token_n, logprob_n, behavior_n);
  }
  void take_drawn(const Tensor& ids_T, const Tensor& drawn_n) const override { take_drawn_on_host(ids_T, drawn_n); }

  void adamw(const Tensor& weight, const Tensor& master, const Tensor& grad, const Tensor& m, const Tensor& v,
             const AdamW& p) const override {
    const int64_t n = master.numel();
    const Elem elem = elem_of(weight);
    const double correction1 = 1.0 - std::pow(p.beta1, p.step);
    const cpu::AdamwArgs args{static_cast<float>(p.lr / correction1),
                              static_cast<float>(p.weight_decay * correction1),
                              static_cast<float>(p.beta1),
                              static_cast<float>(1.0 - p.beta1),
                              static_cast<float>(p.beta2),
                              static_cast<float>(1.0 - p.beta2),
                              static_cast<float>(p.eps),
                              static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(p.beta2, p.step))),
                              static_cast<float>(p.grad_scale)};
    constexpr int64_t kPiece = 65536;
    threads_.for_pieces(n, kPiece, [&](int64_t at, int64_t count) {
      table_.adamw(offset(weight.data_ptr(), at, elem), elem, master.data_ptr<float>() + at,
                   grad.const_data_ptr<float>() + at, m.data_ptr<float>() + at, v.data_ptr<float>() + at, count, args);
    });
  }

  std::vector<double> sums_of_squares(const Tensor& x, int64_t block_elements) const override {
    const int64_t n = x.numel();
    const float* p = static_cast<const float*>(in(x));
    std::vector<double> blocks(static_cast<size_t>((n + block_elements - 1) / block_elements));
    constexpr int64_t kBlocksOfAThread = 4;
    threads_.for_each(static_cast<int64_t>(blocks.size()), kBlocksOfAThread, [&](int64_t block) {
      double sums[8] = {};
      const int64_t begin = block * block_elements, count = std::min(block_elements, n - begin);
      for (int64_t i = 0; i < count; ++i) sums[i % 8] += static_cast<double>(p[begin + i]) * p[begin + i];
      for (const double s : sums) blocks[static_cast<size_t>(block)] += s;
    });
    return blocks;
  }

 private:
  // Runs a gated activation of the table over the rows, or its backward.
  template <typename Kernel>
  Tensor gated(Kernel kernel, const Tensor& gate_up_T2F) const {
    const int64_t width = gate_up_T2F.size(1) / 2;
    Tensor y_TF = at::empty({gate_up_T2F.size(0), width}, gate_up_T2F.options());
    const Elem elem = elem_of(y_TF);
    threads_.for_pieces(y_TF.size(0), kRowChunk, [&](int64_t begin, int64_t rows) {
      kernel(offset(in(gate_up_T2F), begin * 2 * width, elem), offset(y_TF.data_ptr(), begin * width, elem), rows,
             width, elem);
    });
    return y_TF;
  }
  template <typename Kernel>
  Tensor gated_backward(Kernel kernel, const Tensor& dy_TF, const Tensor& gate_up_T2F) const {
    const int64_t width = dy_TF.size(1);
    Tensor dx_T2F = at::empty_like(gate_up_T2F);
    const Elem elem = elem_of(dy_TF);
    threads_.for_pieces(dy_TF.size(0), kRowChunk, [&](int64_t begin, int64_t rows) {
      kernel(offset(dy_TF.mutable_data_ptr(), begin * width, elem), offset(in(gate_up_T2F), begin * 2 * width, elem),
             offset(dx_T2F.data_ptr(), begin * 2 * width, elem), rows, width, elem);
    });
    return dx_T2F;
  }

  // Each call of f adds its rows' share to private sums, which are added to `totals` in chunk order. An undefined total
  // is not wanted: its sum is null.
  template <typename Function>
  void sum_over_chunks(int64_t rows, const std::vector<Tensor>& totals, Function f) const {
    const int64_t chunk_rows = std::max(kRowChunk, (rows + kMaxPartials - 1) / kMaxPartials);
    const int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
    std::vector<Tensor> partials;
    for (const Tensor& total : totals) {
      partials.push_back(total.defined() ? at::zeros({chunks, total.numel()}, total.options()) : Tensor());
    }
    threads_.for_each(chunks, 1, [&](int64_t chunk) {
      std::vector<float*> sums;
      for (const Tensor& partial : partials) {
        sums.push_back(partial.defined() ? partial.data_ptr<float>() + chunk * partial.size(1) : nullptr);
      }
      f(chunk * chunk_rows, std::min(chunk_rows, rows - chunk * chunk_rows), sums);
    });
    for (size_t i = 0; i < totals.size(); ++i) {
      if (!totals[i].defined()) continue;
      float* total = totals[i].data_ptr<float>();
      for (int64_t chunk = 0; chunk < chunks; ++chunk)
        table_.add(total, partials[i].data_ptr<float>() + chunk * totals[i].numel(), total, totals[i].numel(),
                   Elem::kF32);
    }
  }

  static void copy_as_floats(const char* x, float* to, int64_t n, Elem elem) {
    if (elem == Elem::kF32) {
      std::copy_n(reinterpret_cast<const float*>(x), n, to);
    } else {
      std::copy_n(reinterpret_cast<const at::BFloat16*>(x), n, to);
    }
  }

  // Computes sum[i] += x[i] in float32.
  void add_to(float* sum, const char* x, int64_t n, Elem elem) const {
    if (elem == Elem::kF32) {
      table_.add(sum, x, sum, n, Elem::kF32);
    } else {
      const auto* bits = reinterpret_cast<const at::BFloat16*>(x);
      for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<float>(bits[i]);
    }
  }

  static Qkv empty_qkv(const Tensor& qkv_TN, const QkvShape& s) {
    const int64_t rows = qkv_TN.size(0);
    return {at::empty({rows, s.num_heads, s.head_dim}, qkv_TN.options()),
            at::empty({rows, s.num_kv_heads, s.head_dim}, qkv_TN.options()),
            at::empty({rows, s.num_kv_heads, s.head_dim}, qkv_TN.options())};
  }

  std::vector<const float*> rope_rows(const Tensor& positions_T, const QkvShape& s) const {
    const int32_t* positions = static_cast<const int32_t*>(in(positions_T));
    return ropes_.rows(positions, positions_T.numel(), s.head_dim, s.rope_theta, s.rope_factors);
  }

  const cpu::KernelTable& table_;
  // Calls come from one thread at a time.
  mutable ThreadPool threads_;
  // These buffers and tables only save work.
  mutable cpu::GemmRunner gemm_;
  mutable cpu::CpuProducts products_;
  mutable cpu::CpuExperts experts_;
  mutable cpu::CpuAttention attention_;
  mutable cpu::RopeTable ropes_;
  mutable HostSampling sampling_;
};

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(const std::string& isa, int num_threads) {
  // Our own loops do the work that matters. LibTorch's would run on OpenMP's threads, which wait for each other at the
  // end of each loop: on a busy machine, for as long as other processes keep one of them from a core.
  at::set_num_threads(1);
  return std::make_unique<CpuOps>(cpu::choose_kernels(isa), num_threads > 0 ? num_threads : usable_cores());
}

std::string available_cpu_isas() { return cpu::available_isas(); }

}  // namespace tandem::device
