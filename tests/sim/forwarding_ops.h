// Ops that pass every call on. A wrapper overrides the operation that it is about.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/ops.h"

namespace tandem::sim {

using at::Tensor;

class ForwardingOps : public device::Ops {
 public:
  explicit ForwardingOps(const device::Ops& inner) : inner_(inner) {}  // `inner` is borrowed

  std::string name() const override { return inner_.name(); }
  int num_threads() const override { return inner_.num_threads(); }
  at::Device device() const override { return inner_.device(); }
  device::AttentionRows prepare(const device::AttentionRows& rows) const override { return inner_.prepare(rows); }
  void refill(device::AttentionRows& prepared, const device::AttentionRows& rows) const override {
    inner_.refill(prepared, rows);
  }
  int64_t prepared_bytes(int64_t num_rows, int64_t num_sequences, int64_t max_blocks) const override {
    return inner_.prepared_bytes(num_rows, num_sequences, max_blocks);
  }
  Tensor linear(const Tensor& x, const Tensor& w, at::ScalarType out) const override {
    return inner_.linear(x, w, out);
  }
  Tensor linear_add(const Tensor& x, const Tensor& w, const Tensor& residual) const override {
    return inner_.linear_add(x, w, residual);
  }
  void linear_add_to(const Tensor& x, const Tensor& w, const Tensor& y) const override {
    inner_.linear_add_to(x, w, y);
  }
  Tensor dropout(const Tensor& x, const Tensor& row_keys, const device::Dropout& dropout) const override {
    return inner_.dropout(x, row_keys, dropout);
  }
  Tensor embedding(const Tensor& table, const Tensor& ids) const override { return inner_.embedding(table, ids); }
  Tensor embedding_part(const Tensor& table, int64_t first, const Tensor& ids) const override {
    return inner_.embedding_part(table, first, ids);
  }
  void sum_parts(const std::vector<Tensor>& parts, const Tensor& residual, const Tensor& sum) const override {
    inner_.sum_parts(parts, residual, sum);
  }
  Tensor add(const Tensor& a, const Tensor& b) const override { return inner_.add(a, b); }
  Tensor rms_norm(const Tensor& x, const Tensor& w, const device::Norm& norm) const override {
    return inner_.rms_norm(x, w, norm);
  }
  Qkv qk_norm_rope(const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm, const Tensor& positions,
                   const QkvShape& shape) const override {
    return inner_.qk_norm_rope(qkv, q_norm, k_norm, positions, shape);
  }
  void add_bias(const Tensor& y, const Tensor& bias) const override { inner_.add_bias(y, bias); }
  Qkv rope(const Tensor& qkv, const Tensor& positions, const QkvShape& shape) const override {
    return inner_.rope(qkv, positions, shape);
  }
  Tensor silu_mul(const Tensor& gate_up) const override { return inner_.silu_mul(gate_up); }
  Tensor gelu_mul(const Tensor& gate_up) const override { return inner_.gelu_mul(gate_up); }
  device::Routing route(const Tensor& logits_TX, const device::RouteRule& rule) const override {
    return inner_.route(logits_TX, rule);
  }
  Tensor route_backward(const Tensor& dweights_TC, const Tensor& logits_TX, const device::Routing& routing,
                        const device::RouteRule& rule, at::ScalarType out) const override {
    return inner_.route_backward(dweights_TC, logits_TX, routing, rule, out);
  }
  Tensor linear_of_experts(const Tensor& x, device::RowsAre x_rows, const Tensor& w_XNK, const device::Routing& routing,
                           at::ScalarType out) const override {
    return inner_.linear_of_experts(x, x_rows, w_XNK, routing, out);
  }
  Tensor linear_of_experts_grad_input(const Tensor& dy, device::RowsAre dy_rows, const Tensor& w_XNK,
                                      const device::Routing& routing, at::ScalarType out) const override {
    return inner_.linear_of_experts_grad_input(dy, dy_rows, w_XNK, routing, out);
  }
  void linear_of_experts_grad_weight(const Tensor& dy, device::RowsAre dy_rows, const Tensor& x, device::RowsAre x_rows,
                                     const Tensor& dw_XNK, const device::Routing& routing,
                                     device::GradientUse use) const override {
    inner_.linear_of_experts_grad_weight(dy, dy_rows, x, x_rows, dw_XNK, routing, use);
  }
  Tensor sum_of_experts(const Tensor& y_PE, const Tensor& weights_TC, const device::Routing& routing,
                        const Tensor& residual_TE, at::ScalarType out) const override {
    return inner_.sum_of_experts(y_PE, weights_TC, routing, residual_TE, out);
  }
  // mlp_of_experts() is left to the default, which calls the operations above: a test that watches them sees each.
  WeightedSilu weighted_silu_backward(const Tensor& da_PF, const Tensor& gate_up_P2F,
                                      const device::Routing& routing) const override {
    return inner_.weighted_silu_backward(da_PF, gate_up_P2F, routing);
  }

  void kv_append(const Tensor& kv_layer, const Tensor& k, const Tensor& v, const Tensor& tokens,
                 const Tensor& slot_mapping) const override {
    inner_.kv_append(kv_layer, k, v, tokens, slot_mapping);
  }
  Tensor paged_attention(const Tensor& q, const Tensor& kv_layer, const device::AttentionRows& rows,
                         const Tensor& lse) const override {
    return inner_.paged_attention(q, kv_layer, rows, lse);
  }
  void logprob(const Tensor& logits, const Tensor& targets, double temperature, const Tensor& logp,
               const Tensor& entropy, const Tensor& lse) const override {
    inner_.logprob(logits, targets, temperature, logp, entropy, lse);
  }

  Tensor linear_grad_input(const Tensor& dy, const Tensor& w, at::ScalarType out) const override {
    return inner_.linear_grad_input(dy, w, out);
  }
  void linear_grad_weight(const Tensor& dy, const Tensor& x, const Tensor& dw, device::GradientUse use) const override {
    inner_.linear_grad_weight(dy, x, dw, use);
  }
  void embedding_backward(const Tensor& dy, const Tensor& ids, const Tensor& dtable) const override {
    inner_.embedding_backward(dy, ids, dtable);
  }
  void embedding_part_backward(const Tensor& dy, int64_t first, const Tensor& ids,
                               const Tensor& dtable) const override {
    inner_.embedding_part_backward(dy, first, ids, dtable);
  }
  Tensor rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w, const device::Norm& norm,
                           const Tensor& dw) const override {
    return inner_.rms_norm_backward(dy, x, w, norm, dw);
  }
  Tensor qk_norm_rope_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& qkv,
                               const Tensor& q_norm, const Tensor& k_norm, const Tensor& positions,
                               const QkvShape& shape, const Tensor& dq_norm, const Tensor& dk_norm) const override {
    return inner_.qk_norm_rope_backward(dq, dk, dv, qkv, q_norm, k_norm, positions, shape, dq_norm, dk_norm);
  }
  void add_bias_backward(const Tensor& dy, const Tensor& dbias) const override { inner_.add_bias_backward(dy, dbias); }
  Tensor rope_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& positions,
                       const QkvShape& shape) const override {
    return inner_.rope_backward(dq, dk, dv, positions, shape);
  }
  Tensor silu_mul_backward(const Tensor& dy, const Tensor& gate_up) const override {
    return inner_.silu_mul_backward(dy, gate_up);
  }
  Tensor gelu_mul_backward(const Tensor& dy, const Tensor& gate_up) const override {
    return inner_.gelu_mul_backward(dy, gate_up);
  }
  AttentionGrad attention_backward(const Tensor& dout, const Tensor& q, const Tensor& out, const Tensor& lse,
                                   const Tensor& kv, const device::AttentionRows& rows) const override {
    return inner_.attention_backward(dout, q, out, lse, kv, rows);
  }
  Tensor logprob_backward(const Tensor& logits, const Tensor& targets, double temperature, const Tensor& dlogp,
                          const Tensor& dentropy, const Tensor& entropy, const Tensor& lse,
                          at::ScalarType dtype) const override {
    return inner_.logprob_backward(logits, targets, temperature, dlogp, dentropy, entropy, lse, dtype);
  }
  void adamw(const Tensor& weight, const Tensor& master, const Tensor& grad, const Tensor& m, const Tensor& v,
             const AdamW& p) const override {
    inner_.adamw(weight, master, grad, m, v, p);
  }
  std::vector<double> sums_of_squares(const Tensor& x, int64_t block_elements) const override {
    return inner_.sums_of_squares(x, block_elements);
  }
  void sample(const Tensor& logits, const Tensor& draws, const Tensor& token, const Tensor& logprob,
              const Tensor& behavior) const override {
    inner_.sample(logits, draws, token, logprob, behavior);
  }
  void take_drawn(const Tensor& ids, const Tensor& drawn) const override { inner_.take_drawn(ids, drawn); }
  void send(const Tensor& host, const Tensor& on_device) const override { inner_.send(host, on_device); }
  std::unique_ptr<Fetch> fetch(const Tensor& x) const override { return inner_.fetch(x); }
  std::unique_ptr<Recording> record(std::function<void()> work) const override {
    return inner_.record(std::move(work));
  }
  bool runs_ahead() const override { return inner_.runs_ahead(); }

 protected:
  const device::Ops& inner_;
};

}  // namespace tandem::sim
