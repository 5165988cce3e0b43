// Hashes rows and remembers answers.
#include "tests/sim/checking_ops.h"

#include <cstring>
#include <utility>
#include <vector>

#include "device/host_sampling.h"
#include "tests/sim/forwarding_ops.h"

namespace tandem::sim {

namespace {

// FNV-1a over bytes: enough to tell rows apart.
class Hash {
 public:
  Hash& bytes(const void* data, int64_t n) {
    const auto* p = static_cast<const unsigned char*>(data);
    for (int64_t i = 0; i < n; ++i) value_ = (value_ ^ p[i]) * 0x100000001B3ULL;
    return *this;
  }
  template <typename T>
  Hash& number(T x) {
    return bytes(&x, sizeof x);
  }
  Hash& text(const std::string& s) { return bytes(s.data(), static_cast<int64_t>(s.size())); }
  Hash& row(const Tensor& t, int64_t i) {
    const int64_t n = t.numel() / t.size(0) * static_cast<int64_t>(t.element_size());
    return bytes(static_cast<const char*>(t.const_data_ptr()) + i * n, n);
  }
  Hash& all(const Tensor& t) { return bytes(t.const_data_ptr(), static_cast<int64_t>(t.nbytes())); }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xCBF29CE484222325ULL;
};

class CheckingOps final : public ForwardingOps {
 public:
  CheckingOps(const device::Ops& inner, RowLedger& ledger) : ForwardingOps(inner), ledger_(ledger) {}

  std::string name() const override { return inner_.name() + " (checked)"; }

  Tensor linear(const Tensor& x_TK, const Tensor& w_NK, at::ScalarType out) const override {
    const Tensor y = inner_.linear(x_TK, w_NK, out);
    const uint64_t weight = Hash().all(w_NK).number(out).value();
    for (int64_t t = 0; t < x_TK.size(0); ++t) note("linear", Hash().number(weight).row(x_TK, t), Hash().row(y, t));
    return y;
  }
  Tensor linear_add(const Tensor& x_TK, const Tensor& w_NK, const Tensor& residual_TN) const override {
    const Tensor y = inner_.linear_add(x_TK, w_NK, residual_TN);
    const uint64_t weight = Hash().all(w_NK).value();
    for (int64_t t = 0; t < x_TK.size(0); ++t)
      note("linear_add", Hash().number(weight).row(x_TK, t).row(residual_TN, t), Hash().row(y, t));
    return y;
  }
  void linear_add_to(const Tensor& x_TK, const Tensor& w_NK, const Tensor& y_TN) const override {
    const Tensor before = y_TN.clone(at::MemoryFormat::Contiguous);
    inner_.linear_add_to(x_TK, w_NK, y_TN);
    const Tensor after = y_TN.contiguous();
    const uint64_t weight = Hash().all(w_NK).value();
    for (int64_t t = 0; t < x_TK.size(0); ++t)
      note("linear_add_to", Hash().number(weight).row(x_TK, t).row(before, t), Hash().row(after, t));
  }
  Tensor embedding(const Tensor& table_VE, const Tensor& ids_T) const override {
    const Tensor y = inner_.embedding(table_VE, ids_T);
    const int32_t* ids = ids_T.const_data_ptr<int32_t>();
    for (int64_t t = 0; t < ids_T.numel(); ++t) note("embedding", Hash().row(table_VE, ids[t]), Hash().row(y, t));
    return y;
  }
  Tensor embedding_part(const Tensor& table_RE, int64_t first, const Tensor& ids_T) const override {
    const Tensor y = inner_.embedding_part(table_RE, first, ids_T);
    const uint64_t table = Hash().all(table_RE).number(first).value();
    for (int64_t t = 0; t < ids_T.numel(); ++t)
      note("embedding_part", Hash().number(table).row(ids_T, t), Hash().row(y, t));
    return y;
  }
  void sum_parts(const std::vector<Tensor>& parts, const Tensor& residual, const Tensor& sum) const override {
    inner_.sum_parts(parts, residual, sum);
    for (int64_t t = 0; t < sum.size(0); ++t) {
      Hash row;
      for (const Tensor& part : parts) row.row(part, t);
      note("sum_parts", residual.defined() ? row.row(residual, t) : row, Hash().row(sum, t));
    }
  }
  Tensor add(const Tensor& a_TE, const Tensor& b_TE) const override {
    const Tensor y = inner_.add(a_TE, b_TE);
    for (int64_t t = 0; t < a_TE.size(0); ++t) note("add", Hash().row(a_TE, t).row(b_TE, t), Hash().row(y, t));
    return y;
  }
  Tensor rms_norm(const Tensor& x_TE, const Tensor& w_E, const device::Norm& norm) const override {
    const Tensor y = inner_.rms_norm(x_TE, w_E, norm);
    for (int64_t t = 0; t < x_TE.size(0); ++t) note("rms_norm", Hash().all(w_E).row(x_TE, t), Hash().row(y, t));
    return y;
  }
  Qkv qk_norm_rope(const Tensor& qkv_TN, const Tensor& q_norm_K, const Tensor& k_norm_K, const Tensor& positions_T,
                   const QkvShape& shape) const override {
    Qkv out = inner_.qk_norm_rope(qkv_TN, q_norm_K, k_norm_K, positions_T, shape);
    for (int64_t t = 0; t < qkv_TN.size(0); ++t) {
      note("qk_norm_rope", Hash().all(q_norm_K).all(k_norm_K).row(positions_T, t).row(qkv_TN, t),
           Hash().row(out.q_THK, t).row(out.k_TGK, t).row(out.v_TGK, t));
    }
    return out;
  }
  void add_bias(const Tensor& y_TN, const Tensor& bias_N) const override {
    const Tensor before = y_TN.clone();
    inner_.add_bias(y_TN, bias_N);
    for (int64_t t = 0; t < y_TN.size(0); ++t) note("add_bias", Hash().all(bias_N).row(before, t), Hash().row(y_TN, t));
  }
  Qkv rope(const Tensor& qkv_TN, const Tensor& positions_T, const QkvShape& shape) const override {
    Qkv out = inner_.rope(qkv_TN, positions_T, shape);
    for (int64_t t = 0; t < qkv_TN.size(0); ++t) {
      note("rope", Hash().row(positions_T, t).row(qkv_TN, t),
           Hash().row(out.q_THK, t).row(out.k_TGK, t).row(out.v_TGK, t));
    }
    return out;
  }
  Tensor gelu_mul(const Tensor& gate_up_T2F) const override {
    const Tensor y = inner_.gelu_mul(gate_up_T2F);
    for (int64_t t = 0; t < y.size(0); ++t) note("gelu_mul", Hash().row(gate_up_T2F, t), Hash().row(y, t));
    return y;
  }
  Tensor silu_mul(const Tensor& gate_up_T2F) const override {
    const Tensor y = inner_.silu_mul(gate_up_T2F);
    for (int64_t t = 0; t < y.size(0); ++t) note("silu_mul", Hash().row(gate_up_T2F, t), Hash().row(y, t));
    return y;
  }
  device::Routing route(const Tensor& logits_TX, const device::RouteRule& rule) const override {
    device::Routing routing = inner_.route(logits_TX, rule);
    for (int64_t t = 0; t < logits_TX.size(0); ++t) {
      note("route", Hash().number(rule.chosen).number(rule.normalises).row(logits_TX, t),
           Hash().row(routing.ids_TC, t).row(routing.weights_TC, t));
    }
    return routing;
  }
  Tensor linear_of_experts(const Tensor& x, device::RowsAre x_rows, const Tensor& w_XNK, const device::Routing& routing,
                           at::ScalarType out) const override {
    const Tensor y = inner_.linear_of_experts(x, x_rows, w_XNK, routing, out);
    const uint64_t weight = Hash().all(w_XNK).number(out).value();
    const int32_t* const ids = routing.ids_TC.const_data_ptr<int32_t>();
    const int32_t* const places = routing.places_TC.const_data_ptr<int32_t>();
    for (int64_t i = 0; i < routing.num_places(); ++i) {
      const int64_t row = x_rows == device::RowsAre::kTokens ? i / routing.num_chosen() : places[i];
      note("linear_of_experts", Hash().number(weight).number(ids[i]).row(x, row), Hash().row(y, places[i]));
    }
    return y;
  }
  Tensor sum_of_experts(const Tensor& y_PE, const Tensor& weights_TC, const device::Routing& routing,
                        const Tensor& residual_TE, at::ScalarType out) const override {
    const Tensor sum = inner_.sum_of_experts(y_PE, weights_TC, routing, residual_TE, out);
    const int32_t* const places = routing.places_TC.const_data_ptr<int32_t>();
    for (int64_t t = 0; t < sum.size(0); ++t) {
      Hash question;
      if (weights_TC.defined()) question.row(weights_TC, t);
      if (residual_TE.defined()) question.row(residual_TE, t);
      for (int64_t c = 0; c < routing.num_chosen(); ++c) question.row(y_PE, places[t * routing.num_chosen() + c]);
      note("sum_of_experts", question, Hash().row(sum, t));
    }
    return sum;
  }
  Tensor paged_attention(const Tensor& q_THK, const Tensor& kv_layer, const device::AttentionRows& rows,
                         const Tensor& lse_TH) const override {
    const Tensor out = inner_.paged_attention(q_THK, kv_layer, rows, lse_TH);
    const int32_t* sequence = rows.sequence_of_row.const_data_ptr<int32_t>();
    const int32_t* position = rows.row_position.const_data_ptr<int32_t>();
    for (int64_t t = 0; t < q_THK.size(0); ++t) {
      if (sequence[t] < 0) continue;
      Hash question;
      question.row(q_THK, t);
      for (int64_t p = 0; p <= position[t]; ++p) key_at(kv_layer, rows, sequence[t], p, q_THK.size(2), question);
      note("paged_attention", question, Hash().row(out, t));
    }
    return out;
  }
  void logprob(const Tensor& logits_RV, const Tensor& targets_R, double temperature, const Tensor& logp_R,
               const Tensor& entropy_R, const Tensor& lse_R) const override {
    inner_.logprob(logits_RV, targets_R, temperature, logp_R, entropy_R, lse_R);
    for (int64_t r = 0; r < logits_RV.size(0); ++r) {
      note("logprob", Hash().number(temperature).row(targets_R, r).row(logits_RV, r),
           Hash().row(logp_R, r).row(lse_R, r));
    }
  }
  // Tokens are drawn here, so that the draw calls this class's logprob().
  void sample(const Tensor& logits_RV, const Tensor& draws, const Tensor& token_n, const Tensor& logprob_n,
              const Tensor& behavior_n) const override {
    sampling_.sample(*this, logits_RV, draws, token_n, logprob_n, behavior_n);
  }

 private:
  void note(const std::string& operation, const Hash& question, const Hash& answer) const {
    ledger_.record(operation, Hash().text(operation).number(question.value()).value(), answer.value());
  }
  // Hashes K and V of one position, all kv heads: K is [G][K][16], V [G][16][K] inside a block
  // (device/cpu/attention_inl.h).
  static void key_at(const Tensor& kv, const device::AttentionRows& rows, int64_t sequence, int64_t position,
                     int64_t head_dim, Hash& hash) {
    const int64_t kv_heads = kv.size(2), offset = position % device::kBlockTokens;
    const auto bytes = static_cast<int64_t>(kv.element_size());
    const int32_t block =
        rows.block_table
            .const_data_ptr<int32_t>()[sequence * rows.block_table.size(1) + position / device::kBlockTokens];
    const char* base = static_cast<const char*>(kv.const_data_ptr()) + block * kv.stride(0) * bytes;
    for (int64_t g = 0; g < kv_heads; ++g) {
      for (int64_t d = 0; d < head_dim; ++d) {
        hash.bytes(base + ((g * head_dim + d) * device::kBlockTokens + offset) * bytes, bytes);
      }
      const int64_t value = kv_heads * head_dim * device::kBlockTokens + (g * device::kBlockTokens + offset) * head_dim;
      hash.bytes(base + value * bytes, head_dim * bytes);
    }
  }

  RowLedger& ledger_;
  mutable device::ThreadPool sampling_thread_{1};  // one thread: the caller
  mutable device::HostSampling sampling_{sampling_thread_};
};

}  // namespace

void RowLedger::record(const std::string& operation, uint64_t question, uint64_t answer) {
  ++num_answers_;
  const auto [known, is_new] = answers_.try_emplace(question, answer);
  if (is_new) return;
  ++num_repeated_;
  if (known->second != answer && broken_.empty()) broken_ = operation;
}

std::unique_ptr<device::Ops> make_checking_ops(const device::Ops& inner, RowLedger& ledger) {
  return std::make_unique<CheckingOps>(inner, ledger);
}

}  // namespace tandem::sim
