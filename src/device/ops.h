// The operations of a model's forward and backward, as a contract that every backend fills in.
//
// Exactness (docs/EXACTNESS.md): in each *forward* operation a row's result depends on that row (and, for attention,
// on its keys by position) alone: not on the number of rows, their order, the threads, or how keys are
// spread over blocks. Backward operations are deterministic for given inputs and thread count-independent, no more.
//
// Dtypes: "model dtype" is float32 or bfloat16. Arithmetic inside is float32; one rounding per result.
// All tensors are contiguous unless said otherwise, and lie on device(); those of AttentionRows lie on the host,
// because they say how the work is cut. Letters: model/shapes.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/block.h"

namespace tandem::device {

using at::Tensor;

// Which keys each query row sees. Keys live in blocks of kBlockTokens consecutive positions of one sequence:
// position p of sequence s is slot block_table[s][p / kBlockTokens] * kBlockTokens + p % kBlockTokens.
// Row t attends to positions 0..row_position[t] of sequence sequence_of_row[t].
struct AttentionRows {
  Tensor sequence_of_row;  // [T] int32; -1: the row only fills up a batch, and its result means nothing
  Tensor row_position;     // [T] int32
  Tensor block_table;      // [S, max_blocks] int32; entries past a sequence's length are not read
  // Backward only: rows [group_offsets[u], group_offsets[u+1]) of unit u share blocks with no other unit; units are
  // processed in parallel, rows within one in order. [U+1] int32, or undefined.
  Tensor group_offsets;
  // Backward only: the tokens and slots that kv_append() was given. [n] int32, or undefined. Token t is row t.
  Tensor kv_tokens = {}, kv_slots = {};
  // Where on the device prepare() puts what it makes of them: uint8 [>= Ops::prepared_bytes()], aligned to 512 bytes.
  // Undefined: prepare() allocates.
  Tensor memory = {};
  // What Ops::prepare() made of them: the backend's own. Null: it is made anew at each call.
  std::shared_ptr<const void> prepared = nullptr;
};

// Whether the gradient of a weight is added to what its memory holds, or is the first and overwrites it.
enum class GradientUse : uint8_t { kAdd, kSet };

// KV of one layer: [B, 2, G, K * kBlockTokens] in model dtype; dim 0 may be strided (block-major caches hold all
// layers of a block together), the rest is contiguous. Inside a block the layout is the backend's own.
class Ops {
 public:
  virtual ~Ops() = default;
  virtual std::string name() const = 0;  // "cpu/avx512"
  virtual int num_threads() const = 0;   // on the host
  virtual at::Device device() const { return at::kCPU; }
  // Whether the host computes: then its memory is the device's (Footprint::shares_host_memory).
  bool is_on_host() const { return device().is_cpu(); }

  // The rows of one batch made ready: a caller that runs several layers over them asks once. The host's tensors stay as
  // they are while what is returned is used by calls that follow; work of the device that is under way may go on.
  virtual AttentionRows prepare(const AttentionRows& rows) const { return rows; }
  // Rewrites what prepare() made of other rows: as many rows and sequences and as wide a block table, in the same
  // places of the device's memory, so that what was recorded with it reads the new ones.
  virtual void refill(AttentionRows& prepared, const AttentionRows& rows) const { prepared = prepare(rows); }
  // Bytes of AttentionRows::memory for rows of those numbers; 0: prepare() takes none. Where record() does not call its
  // work again, all that prepare() puts on the device lies there.
  virtual int64_t prepared_bytes(int64_t /*num_rows*/, int64_t /*num_sequences*/, int64_t /*max_blocks*/) const {
    return 0;
  }

  // y_TN = x_TK w_NK^T. out: at::kFloat or the model dtype.
  virtual Tensor linear(const Tensor& x_TK, const Tensor& w_NK, at::ScalarType out) const = 0;
  // residual_TN + x_TK w_NK^T, in the model dtype. The product may be rounded to it before it is added, as here.
  virtual Tensor linear_add(const Tensor& x_TK, const Tensor& w_NK, const Tensor& residual_TN) const {
    return add(residual_TN, linear(x_TK, w_NK, residual_TN.scalar_type()));
  }
  // y_TN += x_TK w_NK^T in place, the product rounded to y's dtype before it is added. y's rows may lie in wider ones:
  // a window of the columns of a larger tensor.
  virtual void linear_add_to(const Tensor& x_TK, const Tensor& w_NK, const Tensor& y_TN) const;
  // dx_TK = dy_TN w_NK. out: at::kFloat or the model dtype.
  virtual Tensor linear_grad_input(const Tensor& dy_TN, const Tensor& w_NK, at::ScalarType out) const = 0;
  // dw_NK += dy_TN^T x_TK, or dw_NK = dy_TN^T x_TK: then what lies there is not read. dw float32.
  virtual void linear_grad_weight(const Tensor& dy_TN, const Tensor& x_TK, const Tensor& dw_NK,
                                  GradientUse use) const = 0;

  // rows of `table` [V,E]; ids int32 [T], each in 0..V-1. Who gives ids has checked them on the host
  // (trainer::pack_micro_batch, rollout::Engine::add): the CPU's operations look again and throw, a GPU's do not.
  virtual Tensor embedding(const Tensor& table_VE, const Tensor& ids_T) const = 0;
  // dtable[ids[t]] += dy[t], in order of t. dtable float32.
  virtual void embedding_backward(const Tensor& dy_TE, const Tensor& ids_T, const Tensor& dtable_VE) const = 0;
  // The same where table_RE has rows [first, first + R) of the whole table: an id of another row gives zeros, and its
  // gradient is added nowhere.
  virtual Tensor embedding_part(const Tensor& table_RE, int64_t first, const Tensor& ids_T) const = 0;
  virtual void embedding_part_backward(const Tensor& dy_TE, int64_t first, const Tensor& ids_T,
                                       const Tensor& dtable_RE) const = 0;

  // sum = ((parts[0] + parts[1]) + parts[2]) + ... in float32, rounded to sum's dtype; then, where `residual` is
  // defined, add(residual, that). All of one size; parts of one dtype, float32 or the model's; residual of sum's dtype.
  // `sum` is none of the others.
  virtual void sum_parts(const std::vector<Tensor>& parts, const Tensor& residual, const Tensor& sum) const = 0;

  // residual + delta, rounded once. Same shape, model dtype.
  virtual Tensor add(const Tensor& a_TE, const Tensor& b_TE) const = 0;

  // y_TN += bias_N in each row, rounded once. Same dtype.
  virtual void add_bias(const Tensor& y_TN, const Tensor& bias_N) const = 0;
  // dbias += the sum of dy's rows. dbias float32.
  virtual void add_bias_backward(const Tensor& dy_TN, const Tensor& dbias_N) const = 0;

  // y = x / sqrt(mean(x^2) + eps) * w. HF Qwen3RMSNorm, except that bf16 rounds once, at the end.
  virtual Tensor rms_norm(const Tensor& x_TE, const Tensor& w_E, double eps) const = 0;
  // returns dx; dw += (float32), unless dw is undefined.
  virtual Tensor rms_norm_backward(const Tensor& dy_TE, const Tensor& x_TE, const Tensor& w_E, double eps,
                                   const Tensor& dw_E) const = 0;

  // Splits qkv_TN (N = (H + 2G) K), RMS-normalises each head of q and k, rotates them (HF rotate_half RoPE at
  // positions_T int32). Returns q_THK; k and v as [T, G, K].
  struct Qkv {
    Tensor q_THK, k_TGK, v_TGK;
  };
  struct QkvShape {
    int64_t num_heads, num_kv_heads, head_dim;
    double rope_theta, eps;  // eps: of the norms
    // [K/2], what each rotary frequency theta^(-2i/K) is multiplied by; empty: 1.
    std::vector<float> rope_factors = {};
  };
  virtual Qkv qk_norm_rope(const Tensor& qkv_TN, const Tensor& q_norm_K, const Tensor& k_norm_K,
                           const Tensor& positions_T, const QkvShape& shape) const = 0;
  // returns dqkv_TN; dq_norm, dk_norm += (float32), unless both are undefined.
  virtual Tensor qk_norm_rope_backward(const Tensor& dq_THK, const Tensor& dk_TGK, const Tensor& dv_TGK,
                                       const Tensor& qkv_TN, const Tensor& q_norm_K, const Tensor& k_norm_K,
                                       const Tensor& positions_T, const QkvShape& shape, const Tensor& dq_norm_K,
                                       const Tensor& dk_norm_K) const = 0;

  // The same without the norms (HF apply_rotary_pos_emb); shape.eps is not read.
  virtual Qkv rope(const Tensor& qkv_TN, const Tensor& positions_T, const QkvShape& shape) const = 0;
  // returns dqkv_TN.
  virtual Tensor rope_backward(const Tensor& dq_THK, const Tensor& dk_TGK, const Tensor& dv_TGK,
                               const Tensor& positions_T, const QkvShape& shape) const = 0;

  // silu(gate) * up of gate_up_T[2F] = [gate | up].
  virtual Tensor silu_mul(const Tensor& gate_up_T2F) const = 0;
  virtual Tensor silu_mul_backward(const Tensor& dy_TF, const Tensor& gate_up_T2F) const = 0;

  // Writes k, v of token tokens[i] into slot slot_mapping[i] (int32 [n]; a token may go to several slots). Where the
  // slot is -1 nothing is written; at least one is not.
  virtual void kv_append(const Tensor& kv_layer, const Tensor& k_TGK, const Tensor& v_TGK, const Tensor& tokens,
                         const Tensor& slot_mapping) const = 0;
  // softmax(q k^T / sqrt(K)) v over the keys that `rows` names. lse_TH (float32, natural log) is filled if defined.
  virtual Tensor paged_attention(const Tensor& q_THK, const Tensor& kv_layer, const AttentionRows& rows,
                                 const Tensor& lse_TH) const = 0;
  // The gradients of kv_append() and paged_attention() together, each rounded once to the model dtype: dk and dv of a
  // token are sums over all its slots. out and lse are the forward's; rows has its backward fields.
  struct AttentionGrad {
    Tensor dq_THK, dk_TGK, dv_TGK;
  };
  virtual AttentionGrad attention_backward(const Tensor& dout_THK, const Tensor& q_THK, const Tensor& out_THK,
                                           const Tensor& lse_TH, const Tensor& kv_layer,
                                           const AttentionRows& rows) const = 0;

  // logits_RV float32. logp_R = log softmax(logits / temperature)[target] (float32), entropy_R of that softmax, and
  // its logsumexp (of logits / temperature). targets int32 below V, checked as ids are; a target of -1 gives
  // logp 0. entropy may be undefined.
  virtual void logprob(const Tensor& logits_RV, const Tensor& targets_R, double temperature, const Tensor& logp_R,
                       const Tensor& entropy_R, const Tensor& lse_R) const = 0;
  // d(sum_r dlogp_r logp_r + dentropy_r entropy_r) / d logits; consumes logits. What is returned is their memory,
  // overwritten, in float32, or a new tensor in `dtype`, the model's, where the backend multiplies gradients in that.
  // dentropy may be undefined; entropy is read only where it is not. logits_RV may be some of the columns that lse and
  // entropy are of: a target of V or more is in none of them.
  virtual Tensor logprob_backward(const Tensor& logits_RV, const Tensor& targets_R, double temperature,
                                  const Tensor& dlogp_R, const Tensor& dentropy_R, const Tensor& entropy_R,
                                  const Tensor& lse_R, at::ScalarType dtype) const = 0;

  // Draws tokens [n] from rows of logits_RV by the rule of device/sampler.h. draws: uint8 [n * sizeof(Draw)], an array
  // of Draw (device/draw.h). Of draw i it writes, unless its row is -1:
  //   token_n     int32; -1: the row holds a number that is not finite, and the two others mean nothing
  //   logprob_n   float32, what logprob() gives at the draw's temperature, bit for bit, or at 1 where that is 0
  //   behavior_n  float32, the log-prob in the distribution that was really drawn from, cuts included
  virtual void sample(const Tensor& logits_RV, const Tensor& draws, const Tensor& token_n, const Tensor& logprob_n,
                      const Tensor& behavior_n) const = 0;
  // ids_T[t] < 0 becomes drawn_n[-1 - ids_T[t]], a token that was drawn before this call in the order of the device's
  // work. A drawn -1 becomes 0, so that ids can be looked up; whoever reads it on the host will find out.
  virtual void take_drawn(const Tensor& ids_T, const Tensor& drawn_n) const = 0;

  // One AdamW step (Loshchilov & Hutter 2019) on flat float32 ranges: g = grad * grad_scale; m, v, master updated;
  // `weight` (model dtype) = master rounded; in float32 weight is master. As Megatron's, and unlike torch.optim.AdamW,
  // master -= lr * (Adam's update + weight_decay * master) is rounded once, so that a decay of less than an ulp is not
  // lost in every step: beside an update it is right on average. Alone, without a gradient, it still rounds away below
  // half an ulp, 3e-8 to 6e-8 of the weight.
  struct AdamW {
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    int64_t step;  // from 1, for bias correction
  };
  virtual void adamw(const Tensor& weight, const Tensor& master, const Tensor& grad, const Tensor& m, const Tensor& v,
                     const AdamW& p) const = 0;
  // Of each block of `block_elements` neighbours of x, float32, the sum of squares in float64, in an order that the
  // block's size alone decides; the last block may be smaller. block_elements: a multiple of 4. On the host.
  virtual std::vector<double> sums_of_squares(const Tensor& x, int64_t block_elements) const = 0;

  // The device's work has one order: each of the following is done when what was asked for before it is done.

  // Host to device, the same shape and dtype, without waiting for the device. `host` may be changed when this returns.
  virtual void send(const Tensor& host, const Tensor& on_device) const { on_device.copy_(host); }

  // What a tensor will hold when all that is asked for by now is done; it may be overwritten or freed after that.
  class Fetch {
   public:
    virtual ~Fetch() = default;
    // On the host; the same tensor at each call.
    virtual const Tensor& wait() = 0;
  };
  // The default copies now.
  virtual std::unique_ptr<Fetch> fetch(const Tensor& x) const;

  // Work of the device that replay() runs again without the host's part in it. The tensors that it read and wrote are
  // read and written again, at the same addresses, whatever they then hold; what it allocated and freed is memory that
  // must be free again at each replay.
  class Recording {
   public:
    virtual ~Recording() = default;
    virtual void replay() = 0;
  };
  // `work` may be called once or at each replay. The device does it in replay() alone. The default calls `work` there.
  virtual std::unique_ptr<Recording> record(std::function<void()> work) const;
  // Whether the device works on while the host does something else. Then an engine runs one step ahead of what the host
  // has read.
  virtual bool runs_ahead() const { return false; }
  // Whether a forward of a model of that dtype and those heads can be recorded: none of its operations asks the host.
  virtual bool can_record(at::ScalarType /*dtype*/, int64_t /*num_heads*/, int64_t /*num_kv_heads*/,
                          int64_t /*head_dim*/) const {
    return runs_ahead();
  }
};

// The CPU backend. isa: "auto", "amx", "avx512bf16", "avx512", "avx2", "scalar"; UserError if the machine lacks it.
// num_threads: of this backend's loops and of ATen's; 0: all cores.
std::unique_ptr<Ops> make_cpu_ops(const std::string& isa, int num_threads);
// The sets that this machine can run, best first.
std::string available_cpu_isas();

}  // namespace tandem::device
