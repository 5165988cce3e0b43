// The operations of a device on tensors of the host: arguments go there, results come back. So every test of the CPU's
// backends tests the others too, word for word.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/ops.h"

namespace tandem::device {

class HostedOps : public Ops {
 public:
  explicit HostedOps(std::unique_ptr<Ops> inner) : inner_(std::move(inner)) {}

  std::string name() const override { return inner_->name(); }
  int num_threads() const override { return inner_->num_threads(); }
  AttentionRows prepare(const AttentionRows& rows) const override { return inner_->prepare(rows); }
  void refill(AttentionRows& prepared, const AttentionRows& rows) const override { inner_->refill(prepared, rows); }

  Tensor linear(const Tensor& x, const Tensor& w, at::ScalarType out) const override {
    return back(inner_->linear(there(x), there(w), out));
  }
  Tensor linear_add(const Tensor& x, const Tensor& w, const Tensor& residual) const override {
    return back(inner_->linear_add(there(x), there(w), there(residual)));
  }
  void linear_add_to(const Tensor& x, const Tensor& w, const Tensor& y) const override {
    const Written written(*this, {y});
    inner_->linear_add_to(there(x), there(w), written[0]);
  }
  Tensor linear_grad_input(const Tensor& dy, const Tensor& w, at::ScalarType out) const override {
    return back(inner_->linear_grad_input(there(dy), there(w), out));
  }
  void linear_grad_weight(const Tensor& dy, const Tensor& x, const Tensor& dw, GradientUse use) const override {
    const Written written(*this, {dw});
    inner_->linear_grad_weight(there(dy), there(x), written[0], use);
  }
  Tensor dequantise(const QuantisedMatrix& w) const override { return back(inner_->dequantise(there(w))); }
  Tensor dropout(const Tensor& x, const Tensor& row_keys, const Dropout& dropout) const override {
    return back(inner_->dropout(there(x), there(row_keys), dropout));
  }
  Tensor linear_quantised(const Tensor& x, const QuantisedMatrix& w, at::ScalarType out) const override {
    return back(inner_->linear_quantised(there(x), there(w), out));
  }
  Tensor linear_quantised_add(const Tensor& x, const QuantisedMatrix& w, const Tensor& residual) const override {
    return back(inner_->linear_quantised_add(there(x), there(w), there(residual)));
  }
  Tensor linear_quantised_grad_input(const Tensor& dy, const QuantisedMatrix& w, at::ScalarType out) const override {
    return back(inner_->linear_quantised_grad_input(there(dy), there(w), out));
  }
  Tensor linear_of_experts_quantised(const Tensor& x, RowsAre x_rows, const QuantisedMatrix& w, const Routing& routing,
                                     at::ScalarType out) const override {
    return back(inner_->linear_of_experts_quantised(there(x), x_rows, there(w), there(routing), out));
  }
  Tensor linear_of_experts_quantised_grad_input(const Tensor& dy, RowsAre dy_rows, const QuantisedMatrix& w,
                                                const Routing& routing, at::ScalarType out) const override {
    return back(inner_->linear_of_experts_quantised_grad_input(there(dy), dy_rows, there(w), there(routing), out));
  }
  Tensor embedding(const Tensor& table, const Tensor& ids) const override {
    return back(inner_->embedding(there(table), there(ids)));
  }
  void embedding_backward(const Tensor& dy, const Tensor& ids, const Tensor& dtable) const override {
    const Written written(*this, {dtable});
    inner_->embedding_backward(there(dy), there(ids), written[0]);
  }
  Tensor embedding_part(const Tensor& table, int64_t first, const Tensor& ids) const override {
    return back(inner_->embedding_part(there(table), first, there(ids)));
  }
  void embedding_part_backward(const Tensor& dy, int64_t first, const Tensor& ids,
                               const Tensor& dtable) const override {
    const Written written(*this, {dtable});
    inner_->embedding_part_backward(there(dy), first, there(ids), written[0]);
  }
  void sum_parts(const std::vector<Tensor>& parts, const Tensor& residual, const Tensor& sum) const override {
    const Written written(*this, {sum});
    std::vector<Tensor> parts_there;
    for (const Tensor& part : parts) parts_there.push_back(there(part));
    inner_->sum_parts(parts_there, there(residual), written[0]);
  }
  Tensor add(const Tensor& a, const Tensor& b) const override { return back(inner_->add(there(a), there(b))); }
  void add_bias(const Tensor& y, const Tensor& bias) const override {
    const Written written(*this, {y});
    inner_->add_bias(written[0], there(bias));
  }
  void add_bias_backward(const Tensor& dy, const Tensor& dbias) const override {
    const Written written(*this, {dbias});
    inner_->add_bias_backward(there(dy), written[0]);
  }
  Tensor rms_norm(const Tensor& x, const Tensor& w, const Norm& norm) const override {
    return back(inner_->rms_norm(there(x), there(w), norm));
  }
  Tensor rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w, const Norm& norm,
                           const Tensor& dw) const override {
    const Written written(*this, {dw});
    return back(inner_->rms_norm_backward(there(dy), there(x), there(w), norm, written[0]));
  }
  Qkv qk_norm_rope(const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm, const Tensor& positions,
                   const QkvShape& shape) const override {
    const Qkv result = inner_->qk_norm_rope(there(qkv), there(q_norm), there(k_norm), there(positions), shape);
    return {back(result.q_THK), back(result.k_TGK), back(result.v_TGK)};
  }
  Tensor qk_norm_rope_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& qkv,
                               const Tensor& q_norm, const Tensor& k_norm, const Tensor& positions,
                               const QkvShape& shape, const Tensor& dq_norm, const Tensor& dk_norm) const override {
    const Written written(*this, {dq_norm, dk_norm});
    return back(inner_->qk_norm_rope_backward(there(dq), there(dk), there(dv), there(qkv), there(q_norm), there(k_norm),
                                              there(positions), shape, written[0], written[1]));
  }
  Qkv rope(const Tensor& qkv, const Tensor& positions, const QkvShape& shape) const override {
    const Qkv result = inner_->rope(there(qkv), there(positions), shape);
    return {back(result.q_THK), back(result.k_TGK), back(result.v_TGK)};
  }
  Tensor rope_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& positions,
                       const QkvShape& shape) const override {
    return back(inner_->rope_backward(there(dq), there(dk), there(dv), there(positions), shape));
  }
  Tensor silu_mul(const Tensor& gate_up) const override { return back(inner_->silu_mul(there(gate_up))); }
  Tensor gelu_mul(const Tensor& gate_up) const override { return back(inner_->gelu_mul(there(gate_up))); }
  Tensor gelu_mul_backward(const Tensor& dy, const Tensor& gate_up) const override {
    const Written written(*this, {dy});
    return back(inner_->gelu_mul_backward(written[0], there(gate_up)));
  }
  Tensor silu_mul_backward(const Tensor& dy, const Tensor& gate_up) const override {
    const Written written(*this, {dy});
    return back(inner_->silu_mul_backward(written[0], there(gate_up)));
  }
  Routing route(const Tensor& logits, const RouteRule& rule) const override {
    const Routing made = inner_->route(there(logits), rule);
    return {back(made.ids_TC), back(made.weights_TC), back(made.offsets_X1), back(made.places_TC),
            back(made.sources_P)};
  }
  Tensor route_backward(const Tensor& dweights, const Tensor& logits, const Routing& routing, const RouteRule& rule,
                        at::ScalarType out) const override {
    return back(inner_->route_backward(there(dweights), there(logits), there(routing), rule, out));
  }
  Tensor linear_of_experts(const Tensor& x, RowsAre x_rows, const Tensor& w, const Routing& routing,
                           at::ScalarType out) const override {
    return back(inner_->linear_of_experts(there(x), x_rows, there(w), there(routing), out));
  }
  Tensor linear_of_experts_grad_input(const Tensor& dy, RowsAre dy_rows, const Tensor& w, const Routing& routing,
                                      at::ScalarType out) const override {
    return back(inner_->linear_of_experts_grad_input(there(dy), dy_rows, there(w), there(routing), out));
  }
  void linear_of_experts_grad_weight(const Tensor& dy, RowsAre dy_rows, const Tensor& x, RowsAre x_rows,
                                     const Tensor& dw, const Routing& routing, GradientUse use) const override {
    const Written written(*this, {dw});
    inner_->linear_of_experts_grad_weight(there(dy), dy_rows, there(x), x_rows, written[0], there(routing), use);
  }
  Tensor sum_of_experts(const Tensor& y, const Tensor& weights, const Routing& routing, const Tensor& residual,
                        at::ScalarType out) const override {
    return back(inner_->sum_of_experts(there(y), there(weights), there(routing), there(residual), out));
  }
  ExpertsMlp mlp_of_experts(const Tensor& x, const Tensor& gate_up, const Tensor& down, const Routing& routing,
                            const Tensor& residual, at::ScalarType out, bool keeps_gate_up) const override {
    const ExpertsMlp result = inner_->mlp_of_experts(there(x), there(gate_up), there(down), there(routing),
                                                     there(residual), out, keeps_gate_up);
    return {back(result.sum_TE), keeps_gate_up ? back(result.gate_up_P2F) : Tensor()};
  }
  void results_of_experts(const Tensor& x, const Tensor& gate_up, const Tensor& down, const Routing& routing,
                          ExpertRange range, const Tensor& y) const override {
    const Tensor results = there(y);
    inner_->results_of_experts(there(x), there(gate_up), there(down), there(routing), range, results);
    Tensor(y).copy_(back(results));
  }
  WeightedSilu weighted_silu_backward(const Tensor& da, const Tensor& gate_up, const Routing& routing) const override {
    const WeightedSilu result = inner_->weighted_silu_backward(there(da), there(gate_up), there(routing));
    return {back(result.dgate_up_P2F), back(result.weighted_PF), back(result.dweights_TC)};
  }
  void kv_append(const Tensor& kv_layer, const Tensor& k, const Tensor& v, const Tensor& tokens,
                 const Tensor& slot_mapping) const override {
    const Written written(*this, {kv_layer});
    inner_->kv_append(written[0], there(k), there(v), there(tokens), there(slot_mapping));
  }
  Tensor paged_attention(const Tensor& q, const Tensor& kv_layer, const AttentionRows& rows,
                         const Tensor& lse) const override {
    const Written written(*this, {lse});
    return back(inner_->paged_attention(there(q), there(kv_layer), rows, written[0]));
  }
  AttentionGrad attention_backward(const Tensor& dout, const Tensor& q, const Tensor& out, const Tensor& lse,
                                   const Tensor& kv_layer, const AttentionRows& rows) const override {
    const AttentionGrad result =
        inner_->attention_backward(there(dout), there(q), there(out), there(lse), there(kv_layer), rows);
    return {back(result.dq_THK), back(result.dk_TGK), back(result.dv_TGK)};
  }
  void logprob(const Tensor& logits, const Tensor& targets, double temperature, const Tensor& logp,
               const Tensor& entropy, const Tensor& lse) const override {
    const Written written(*this, {logp, entropy, lse});
    inner_->logprob(there(logits), there(targets), temperature, written[0], written[1], written[2]);
  }
  Tensor logprob_backward(const Tensor& logits, const Tensor& targets, double temperature, const Tensor& dlogp,
                          const Tensor& dentropy, const Tensor& entropy, const Tensor& lse,
                          at::ScalarType dtype) const override {
    return back(inner_->logprob_backward(there(logits), there(targets), temperature, there(dlogp), there(dentropy),
                                         there(entropy), there(lse), dtype));
  }
  void adamw(const Tensor& weight, const Tensor& master, const Tensor& grad, const Tensor& m, const Tensor& v,
             const AdamW& p) const override {
    const Written written(*this, {master, m, v, weight});
    const bool is_master = weight.const_data_ptr() == master.const_data_ptr();
    inner_->adamw(written[is_master ? 0 : 3], written[0], there(grad), written[1], written[2], p);
    if (is_master) written[3].copy_(written[0]);
  }
  std::vector<double> sums_of_squares(const Tensor& x, int64_t block_elements) const override {
    return inner_->sums_of_squares(there(x), block_elements);
  }
  void sample(const Tensor& logits, const Tensor& draws, const Tensor& token, const Tensor& logprob,
              const Tensor& behavior) const override {
    const Written written(*this, {token, logprob, behavior});
    inner_->sample(there(logits), there(draws), written[0], written[1], written[2]);
  }
  void take_drawn(const Tensor& ids, const Tensor& drawn) const override {
    const Written written(*this, {ids});
    inner_->take_drawn(written[0], there(drawn));
  }

 private:
  Tensor there(const Tensor& x) const { return x.defined() ? x.to(inner_->device()) : x; }
  QuantisedMatrix there(const QuantisedMatrix& x) const { return {.bytes = there(x.bytes), .parts = x.parts}; }
  Routing there(const Routing& x) const {
    return {there(x.ids_TC), there(x.weights_TC), there(x.offsets_X1), there(x.places_TC), there(x.sources_P)};
  }
  static Tensor back(const Tensor& x) { return x.to(at::kCPU); }

  // Arguments that a call writes: they are copied back after the call.
  class Written {
   public:
    Written(const HostedOps& ops, std::initializer_list<Tensor> host) : host_(host) {
      for (const Tensor& x : host_) there_.push_back(ops.there(x));
    }
    ~Written() {
      for (size_t i = 0; i < host_.size(); ++i) {
        if (host_[i].defined()) host_[i].copy_(there_[i]);
      }
    }
    Written(const Written&) = delete;
    Written& operator=(const Written&) = delete;
    const Tensor& operator[](size_t i) const { return there_[i]; }

   private:
    std::vector<Tensor> host_, there_;
  };

  std::unique_ptr<Ops> inner_;
};

}  // namespace tandem::device
