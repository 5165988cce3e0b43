// The operations of a model's forward and backward, as a contract that every backend fills in.
//
// Exactness (docs/EXACTNESS.md): in each *forward* operation a row's result depends on that row (and, for attention, on
// its keys by position) alone: not on the number of rows, their order, the threads, or how keys are spread over blocks.
// Backward operations are deterministic for given inputs and independent of the thread count, no more.
//
// Dtypes: "model dtype" is float32 or bfloat16. Arithmetic inside is float32, with one rounding per result. All tensors
// are contiguous unless said otherwise, and lie on device(); those of AttentionRows lie on the host, because they say
// how the work is cut. model/shapes.h explains the letters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/block.h"
#include "device/dropout.h"
#include "device/experts.h"
#include "device/gelu.h"
#include "device/quantised_matrix.h"

namespace tandem::device {

using at::Tensor;

// States which keys each query row sees. Keys live in blocks of kBlockTokens consecutive positions of one sequence:
// position p of sequence s is slot block_table[s][p / kBlockTokens] * kBlockTokens + p % kBlockTokens. Row t attends to
// positions 0..row_position[t] of sequence sequence_of_row[t], or, with a window, to the last `window` of them.
struct AttentionRows {
  Tensor sequence_of_row;  // [T] int32; -1: the row only fills up a batch, and its result means nothing
  Tensor row_position;     // [T] int32
  Tensor block_table;      // [S, max_blocks] int32; entries past a sequence's length are not read
  // This field is for the backward pass. Rows [group_offsets[u], group_offsets[u+1]) of unit u share blocks with no
  // other unit; units are processed in parallel, rows within one in order. [U+1] int32, or undefined.
  Tensor group_offsets;
  // These are for the backward pass: the tokens and slots that kv_append() was given. [n] int32, or undefined. Token t
  // is row t.
  Tensor kv_tokens = {}, kv_slots = {};
  // prepare() writes its results into this device memory: uint8 [>= Ops::prepared_bytes()], aligned to 512 bytes. If it
  // is undefined, prepare() allocates.
  Tensor memory = {};
  // The backend's own result of Ops::prepare(), which is that of every window. If it is null, each call computes it
  // anew.
  std::shared_ptr<const void> prepared = nullptr;
  // A row sees this many positions, its own included; 0: all. What lies in a block that no row
  // of its sequence sees changes no result of a forward: there the block table may name any block.
  int64_t window = 0;
};

// States whether the gradient of a weight is added to what its memory holds, or is the first and overwrites it.
enum class GradientUse : uint8_t { kAdd, kSet };

// The numbers of a root-mean-square norm: y = x / sqrt(mean(x^2) + eps) * (offset + w).
struct Norm {
  Norm(double eps, double offset = 0.0) : eps(eps), offset(offset) {}  // implicit: most norms are their epsilon
  double eps, offset;
};

// kv_layer is the KV cache of one layer: [B, 2, G, K * kBlockTokens] in model dtype. Dim 0 may be strided (block-major
// caches hold all layers of a block together), the rest is contiguous. Inside a block the layout is the backend's own.
class Ops {
 public:
  virtual ~Ops() = default;
  virtual std::string name() const = 0;  // for example "cpu/avx512"
  virtual int num_threads() const = 0;   // threads on the host
  virtual at::Device device() const { return at::kCPU; }
  // Whether the host computes: then its memory is the device's (Footprint::shares_host_memory).
  bool is_on_host() const { return device().is_cpu(); }

  // Prepares the rows of one batch, so that a caller that runs several layers over them pays once. The host's tensors
  // must not change while later calls use the result, except that device work in flight may continue.
  virtual AttentionRows prepare(const AttentionRows& rows) const { return rows; }
  // Updates an earlier result of prepare() to other rows: as many rows and sequences and as wide a block table. The
  // device memory stays in place, so that recorded work reads the new rows.
  virtual void refill(AttentionRows& prepared, const AttentionRows& rows) const { prepared = prepare(rows); }
  // Returns the bytes of AttentionRows::memory for so many rows, or 0 if prepare() takes none. Where record() does not
  // call its work again, all that prepare() puts on the device lies there.
  virtual int64_t prepared_bytes(int64_t /*num_rows*/, int64_t /*num_sequences*/, int64_t /*max_blocks*/) const {
    return 0;
  }

  // Returns y_TN = x_TK w_NK^T. `out` is at::kFloat or the model dtype.
  virtual Tensor linear(const Tensor& x_TK, const Tensor& w_NK, at::ScalarType out) const = 0;
  // Returns residual_TN + x_TK w_NK^T in the model dtype. The product may be rounded to it before it is added, as here.
  virtual Tensor linear_add(const Tensor& x_TK, const Tensor& w_NK, const Tensor& residual_TN) const {
    return add(residual_TN, linear(x_TK, w_NK, residual_TN.scalar_type()));
  }
  // Computes y_TN += x_TK w_NK^T in place; the product is rounded to y's dtype before it is added. y's rows may lie in
  // wider ones: a window of the columns of a larger tensor.
  virtual void linear_add_to(const Tensor& x_TK, const Tensor& w_NK, const Tensor& y_TN) const;
  // Returns dx_TK = dy_TN w_NK. `out` is at::kFloat or the model dtype.
  virtual Tensor linear_grad_input(const Tensor& dy_TN, const Tensor& w_NK, at::ScalarType out) const = 0;
  // Computes dw_NK += dy_TN^T x_TK, or dw_NK = dy_TN^T x_TK, which does not read what lies there. dw is float32.
  virtual void linear_grad_weight(const Tensor& dy_TN, const Tensor& x_TK, const Tensor& dw_NK,
                                  GradientUse use) const = 0;

  // The next four are for a quantised matrix, on a backend whose footprint says that it has them; they throw BugError
  // on others.
  // Returns the weights that it stands for, w_NK in bfloat16.
  virtual Tensor dequantise(const QuantisedMatrix& w_NK) const;
  // Return linear() and linear_grad_input() of these weights, bit for bit, as here; a backend need not have all of them
  // in memory for it. x and dy are bfloat16.
  virtual Tensor linear_quantised(const Tensor& x_TK, const QuantisedMatrix& w_NK, at::ScalarType out) const;
  // Returns linear_add() of these weights, where the backend may round the product before it is added, as here.
  virtual Tensor linear_quantised_add(const Tensor& x_TK, const QuantisedMatrix& w_NK, const Tensor& residual_TN) const;
  virtual Tensor linear_quantised_grad_input(const Tensor& dy_TN, const QuantisedMatrix& w_NK,
                                             at::ScalarType out) const;

  // Returns x_TK with elements dropped by the rule of device/dropout.h: row t has the key row_keys_T[t], int64, whose
  // bits count. It is its own backward. Only for a backend whose footprint says that it has dropout; others throw
  // BugError.
  virtual Tensor dropout(const Tensor& x_TK, const Tensor& row_keys_T, const Dropout& dropout) const;

  // Returns rows of `table` [V,E]; ids are int32 [T], each in 0..V-1. The caller has checked the ids on the host
  // (trainer::pack_micro_batch, rollout::Engine::add): the CPU's operations check again and throw, a GPU's do not.
  virtual Tensor embedding(const Tensor& table_VE, const Tensor& ids_T) const = 0;
  // Computes dtable[ids[t]] += dy[t], in order of t. dtable is float32.
  virtual void embedding_backward(const Tensor& dy_TE, const Tensor& ids_T, const Tensor& dtable_VE) const = 0;
  // The two below do the same where table_RE has rows [first, first + R) of the whole table: an id of another row gives
  // zeros, and its gradient is added nowhere.
  virtual Tensor embedding_part(const Tensor& table_RE, int64_t first, const Tensor& ids_T) const = 0;
  virtual void embedding_part_backward(const Tensor& dy_TE, int64_t first, const Tensor& ids_T,
                                       const Tensor& dtable_RE) const = 0;

  // Computes sum = ((parts[0] + parts[1]) + parts[2]) + ... in float32, rounded to sum's dtype; then, where `residual`
  // is defined, add(residual, that). All have one size. The parts have one dtype, float32 or the model's; residual has
  // sum's dtype. `sum` is none of the others.
  virtual void sum_parts(const std::vector<Tensor>& parts, const Tensor& residual, const Tensor& sum) const = 0;

  // Returns residual + delta, rounded once. Both have the same shape and the model dtype.
  virtual Tensor add(const Tensor& a_TE, const Tensor& b_TE) const = 0;

  // Computes y_TN += bias_N in each row, rounded once. Both have the same dtype.
  virtual void add_bias(const Tensor& y_TN, const Tensor& bias_N) const = 0;
  // Computes dbias += the sum of dy's rows. dbias is float32.
  virtual void add_bias_backward(const Tensor& dy_TN, const Tensor& dbias_N) const = 0;

  // Returns y = x / sqrt(mean(x^2) + eps) * (offset + w). This is HF's Qwen3RMSNorm, and with an offset of 1
  // Gemma3RMSNorm, except that bf16 rounds once, at the end. The width may be any.
  virtual Tensor rms_norm(const Tensor& x_TE, const Tensor& w_E, const Norm& norm) const = 0;
  // Returns dx and adds to dw (float32), unless dw is undefined.
  virtual Tensor rms_norm_backward(const Tensor& dy_TE, const Tensor& x_TE, const Tensor& w_E, const Norm& norm,
                                   const Tensor& dw_E) const = 0;

  // Splits qkv_TN (N = (H + 2G) K), RMS-normalises each head of q and k, and rotates them (HF rotate_half RoPE at
  // positions_T int32). Returns q_THK, and k and v as [T, G, K].
  struct Qkv {
    Tensor q_THK, k_TGK, v_TGK;
  };
  struct QkvShape {
    int64_t num_heads, num_kv_heads, head_dim;
    double rope_theta, eps;  // eps: epsilon of the norms
    // Each rotary frequency theta^(-2i/K) is multiplied by its factor, [K/2]; empty means 1.
    std::vector<float> rope_factors = {};
    double norm_offset = 0.0;  // Norm::offset of the norms
    Norm norm() const { return {eps, norm_offset}; }
  };
  virtual Qkv qk_norm_rope(const Tensor& qkv_TN, const Tensor& q_norm_K, const Tensor& k_norm_K,
                           const Tensor& positions_T, const QkvShape& shape) const = 0;
  // Returns dqkv_TN and adds to dq_norm and dk_norm (float32), unless both are undefined.
  virtual Tensor qk_norm_rope_backward(const Tensor& dq_THK, const Tensor& dk_TGK, const Tensor& dv_TGK,
                                       const Tensor& qkv_TN, const Tensor& q_norm_K, const Tensor& k_norm_K,
                                       const Tensor& positions_T, const QkvShape& shape, const Tensor& dq_norm_K,
                                       const Tensor& dk_norm_K) const = 0;

  // The two below do the same without the norms (HF apply_rotary_pos_emb); shape.eps is not read.
  virtual Qkv rope(const Tensor& qkv_TN, const Tensor& positions_T, const QkvShape& shape) const = 0;
  // Returns dqkv_TN.
  virtual Tensor rope_backward(const Tensor& dq_THK, const Tensor& dk_TGK, const Tensor& dv_TGK,
                               const Tensor& positions_T, const QkvShape& shape) const = 0;

  // Returns silu(gate) * up of gate_up_T[2F] = [gate | up].
  virtual Tensor silu_mul(const Tensor& gate_up_T2F) const = 0;
  // Returns dgate_up_T2F, and leaves silu_mul(gate_up_T2F), bit for bit, in the place of dy_TF: the product behind it
  // needs that for its weight's gradient, and here gate and up are read already.
  virtual Tensor silu_mul_backward(const Tensor& dy_TF, const Tensor& gate_up_T2F) const = 0;
  // Returns gelu(gate) * up with the tanh form of GELU (Hendrycks and Gimpel 2016), HF's gelu_pytorch_tanh:
  //   gelu(g) = g / 2 (1 + tanh(z)) = g sigmoid(2 z)    with z = sqrt(2 / pi) (g + 0.044715 g^3)
  virtual Tensor gelu_mul(const Tensor& gate_up_T2F) const = 0;
  // Returns dgate_up_T2F, and leaves gelu_mul(gate_up_T2F) in the place of dy_TF, as silu_mul_backward() does.
  virtual Tensor gelu_mul_backward(const Tensor& dy_TF, const Tensor& gate_up_T2F) const = 0;

  // The next eleven are a layer of experts (device/experts.h). Where a place's row is said to be of its token, it is
  // the row of x, or of dy, that the token has.

  // Chooses the experts of each token by logits_TX, float32, and orders the places. A row's choice depends on its row
  // alone. A logit that is not finite makes the row's weights NaN; ids stay within the experts.
  virtual Routing route(const Tensor& logits_TX, const RouteRule& rule) const = 0;
  // Returns dlogits_TX in `out`, given the gradients of Routing::weights_TC. logits_TX are those of route().
  virtual Tensor route_backward(const Tensor& dweights_TC, const Tensor& logits_TX, const Routing& routing,
                                const RouteRule& rule, at::ScalarType out) const = 0;
  // Returns y_PN: row p is x's row of place p times rows [e N, (e + 1) N) of w_XNK, if e is the expert of the place. A
  // row depends on x's row and the expert's weights alone. `out` is at::kFloat or the model dtype.
  virtual Tensor linear_of_experts(const Tensor& x, RowsAre x_rows, const Tensor& w_XNK, const Routing& routing,
                                   at::ScalarType out) const = 0;
  // Returns dx_PK, given dy with N columns.
  virtual Tensor linear_of_experts_grad_input(const Tensor& dy, RowsAre dy_rows, const Tensor& w_XNK,
                                              const Routing& routing, at::ScalarType out) const = 0;
  // Return the two above of the weights that a quantised matrix stands for, bit for bit, as here; each expert's rows
  // are parts of it. Only for a backend whose footprint says that it has quantised matrices.
  virtual Tensor linear_of_experts_quantised(const Tensor& x, RowsAre x_rows, const QuantisedMatrix& w_XNK,
                                             const Routing& routing, at::ScalarType out) const;
  virtual Tensor linear_of_experts_quantised_grad_input(const Tensor& dy, RowsAre dy_rows, const QuantisedMatrix& w_XNK,
                                                        const Routing& routing, at::ScalarType out) const;
  // Computes dw_XNK += or = the sum over an expert's places, in their order, of dy's row times x's row. dw is float32.
  // With GradientUse::kSet the rows of an expert that has no place become zeros.
  virtual void linear_of_experts_grad_weight(const Tensor& dy, RowsAre dy_rows, const Tensor& x, RowsAre x_rows,
                                             const Tensor& dw_XNK, const Routing& routing, GradientUse use) const = 0;
  // Returns for each token the sum of its places' rows of y_PE, each times its weight, by rising expert id in float32;
  // then plus residual_TE; rounded once to `out`. Where weights_TC is undefined they are 1. residual_TE may be
  // undefined; it has the dtype `out`.
  virtual Tensor sum_of_experts(const Tensor& y_PE, const Tensor& weights_TC, const Routing& routing,
                                const Tensor& residual_TE, at::ScalarType out) const = 0;
  // The MLP of experts in one: sum_of_experts(), with the routing's weights, of the product of silu_mul(gate_up_P2F)
  // with down_XEF, whose rows have the dtype `out`. gate_up_P2F, in x's dtype, is the product of x_TE with
  // gate_up_X2FE; the backward needs it, and where `keeps_gate_up` is false it is undefined. Bits are those of the
  // operations one by one, as here; a backend may take fewer steps.
  struct ExpertsMlp {
    Tensor sum_TE, gate_up_P2F;
  };
  virtual ExpertsMlp mlp_of_experts(const Tensor& x_TE, const Tensor& gate_up_X2FE, const Tensor& down_XEF,
                                    const Routing& routing, const Tensor& residual_TE, at::ScalarType out,
                                    bool keeps_gate_up) const;
  // Writes rows of y_PE, which has the dtype of x: those of the places of experts in `range` become what
  // mlp_of_experts() adds up for them, bit for bit. Whether other rows are written, and what they are, means nothing.
  virtual void results_of_experts(const Tensor& x_TE, const Tensor& gate_up_X2FE, const Tensor& down_XEF,
                                  const Routing& routing, ExpertRange range, const Tensor& y_PE) const;
  // The backward of silu_mul() between the two products, given da_PF: the gradient of its result if the place's weight
  // were 1. With a = silu_mul(gate_up), `weighted` is weight * a and dweight the product of da and a, float32.
  struct WeightedSilu {
    Tensor dgate_up_P2F, weighted_PF, dweights_TC;
  };
  virtual WeightedSilu weighted_silu_backward(const Tensor& da_PF, const Tensor& gate_up_P2F,
                                              const Routing& routing) const = 0;

  // Writes k, v of token tokens[i] into slot slot_mapping[i] (int32 [n]; a token may go to several slots). A slot of -1
  // writes nothing; at least one slot is not -1, except in a step of ranks that share experts
  // (device/expert_exchange.h), whose backends do not need one.
  virtual void kv_append(const Tensor& kv_layer, const Tensor& k_TGK, const Tensor& v_TGK, const Tensor& tokens,
                         const Tensor& slot_mapping) const = 0;
  // Returns softmax(q k^T / sqrt(K)) v over the keys that `rows` names. Fills lse_TH (float32, natural log) if defined.
  virtual Tensor paged_attention(const Tensor& q_THK, const Tensor& kv_layer, const AttentionRows& rows,
                                 const Tensor& lse_TH) const = 0;
  // Computes the gradients of kv_append() and paged_attention() together, each rounded once to the model dtype: dk and
  // dv of a token are sums over all its slots. out and lse are the forward's; rows has its backward fields.
  struct AttentionGrad {
    Tensor dq_THK, dk_TGK, dv_TGK;
  };
  virtual AttentionGrad attention_backward(const Tensor& dout_THK, const Tensor& q_THK, const Tensor& out_THK,
                                           const Tensor& lse_TH, const Tensor& kv_layer,
                                           const AttentionRows& rows) const = 0;

  // Computes logp_R = log softmax(logits / temperature)[target] (float32), the entropy_R of that softmax, and its
  // logsumexp (of logits / temperature). logits_RV are float32. Targets are int32 below V, checked as ids are; a target
  // of -1 gives logp 0. entropy may be undefined.
  virtual void logprob(const Tensor& logits_RV, const Tensor& targets_R, double temperature, const Tensor& logp_R,
                       const Tensor& entropy_R, const Tensor& lse_R) const = 0;
  // Returns d(sum_r dlogp_r logp_r + dentropy_r entropy_r) / d logits and consumes logits. The result is their memory,
  // overwritten, in float32, or a new tensor in `dtype`, the model's, where the backend multiplies gradients in that.
  // dentropy may be undefined; entropy is read only where it is not. logits_RV may be some of the columns that lse and
  // entropy are of: a target of V or more is in none of them.
  virtual Tensor logprob_backward(const Tensor& logits_RV, const Tensor& targets_R, double temperature,
                                  const Tensor& dlogp_R, const Tensor& dentropy_R, const Tensor& entropy_R,
                                  const Tensor& lse_R, at::ScalarType dtype) const = 0;

  // Draws tokens [n] from rows of logits_RV by the rule of device/sampler.h. draws is uint8 [n * sizeof(Draw)], an
  // array of Draw (device/draw.h). For draw i it writes, unless its row is -1:
  //   token_n     int32; -1: the row holds a number that is not finite, and the two others mean nothing
  //   logprob_n   float32, the result of logprob() at the draw's temperature, bit for bit, or at 1 where that is 0
  //   behavior_n  float32, the log-prob in the distribution that was really drawn from, cuts included
  virtual void sample(const Tensor& logits_RV, const Tensor& draws, const Tensor& token_n, const Tensor& logprob_n,
                      const Tensor& behavior_n) const = 0;
  // Replaces ids_T[t] < 0 by drawn_n[-1 - ids_T[t]], a token that was drawn before this call in the order of the
  // device's work. A drawn -1 becomes 0, so that ids can be looked up; the host finds out when it reads it.
  virtual void take_drawn(const Tensor& ids_T, const Tensor& drawn_n) const = 0;

  // One AdamW step (Loshchilov & Hutter 2019) on flat float32 ranges: g = grad * grad_scale; m, v and master are
  // updated; `weight` (model dtype) = master rounded; in float32 weight is master. Like Megatron's and unlike
  // torch.optim.AdamW, master -= lr * (Adam's update + weight_decay * master) is rounded once, so that a decay of less
  // than an ulp is not lost in every step: added to an update it is right on average. Alone, without a gradient, it
  // still rounds away below half an ulp, 3e-8 to 6e-8 of the weight.
  struct AdamW {
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    int64_t step;  // step number from 1, for bias correction
  };
  virtual void adamw(const Tensor& weight, const Tensor& master, const Tensor& grad, const Tensor& m, const Tensor& v,
                     const AdamW& p) const = 0;
  // Returns, on the host, the sum of squares of each block of `block_elements` neighbours of x (float32), in float64
  // and in an order that the block's size alone decides. The last block may be smaller. block_elements is a multiple of
  // 4.
  virtual std::vector<double> sums_of_squares(const Tensor& x, int64_t block_elements) const = 0;

  // The device's work has one order: each of the following is done when the work that was queued before it is done.

  // Copies from host to device, same shape and dtype, without waiting for the device. `host` may be changed when this
  // returns.
  virtual void send(const Tensor& host, const Tensor& on_device) const { on_device.copy_(host); }

  // A copy to the host, in flight, of what a tensor will hold when all work queued so far is done. The tensor may be
  // overwritten or freed after that work.
  class Fetch {
   public:
    virtual ~Fetch() = default;
    // Returns the copy on the host; it is the same tensor at each call.
    virtual const Tensor& wait() = 0;
  };
  // Starts a copy to the host. The default copies at once.
  virtual std::unique_ptr<Fetch> fetch(const Tensor& x) const;

  // Device work that replay() runs again without the host's part in it. The same tensors are read and written again, at
  // the same addresses, whatever they then hold. Memory that the work allocated and freed must be free again at each
  // replay.
  class Recording {
   public:
    virtual ~Recording() = default;
    virtual void replay() = 0;
  };
  // Records `work`, which may be called once or at each replay. The device does it in replay() alone. The default calls
  // `work` there.
  virtual std::unique_ptr<Recording> record(std::function<void()> work) const;
  // Returns whether the device works on while the host does something else. Then an engine runs one step ahead of the
  // tokens that the host has read.
  virtual bool runs_ahead() const { return false; }
  // Returns whether a forward of a model of that dtype and those heads can be recorded: none of its operations waits
  // for the host.
  virtual bool can_record(at::ScalarType /*dtype*/, int64_t /*num_heads*/, int64_t /*num_kv_heads*/,
                          int64_t /*head_dim*/) const {
    return runs_ahead();
  }
  // Returns whether that holds for a sparse model too, with so many experts, of which a token has `chosen`, and whose
  // rows have `hidden` numbers outside and `width` inside of an expert.
  virtual bool can_record_experts(int64_t /*num_experts*/, int64_t /*chosen*/, int64_t /*hidden*/,
                                  int64_t /*width*/) const {
    return runs_ahead();
  }
};

// Makes the CPU backend. isa is "auto", "amx", "avx512bf16", "avx512", "avx2" or "scalar"; UserError if the machine
// lacks it. num_threads counts threads of this backend's loops and of ATen's; 0 means all cores.
std::unique_ptr<Ops> make_cpu_ops(const std::string& isa, int num_threads);
// Returns the instruction sets that this machine can run, best first.
std::string available_cpu_isas();

}  // namespace tandem::device
