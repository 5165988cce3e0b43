// The operations of device/ops.h once more, in float64 and plain loops, written apart from every backend: the reference
// for the backends' results. Vectors are row-major; the dims are arguments.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem::device::reference {

using Values = std::vector<double>;
using Ids = std::vector<int32_t>;

// Returns [T, N] of x [T, K] and w [N, K].
Values linear(const Values& x, const Values& w, int64_t T, int64_t K, int64_t N);
Values linear_grad_input(const Values& dy, const Values& w, int64_t T, int64_t K, int64_t N);
Values linear_grad_weight(const Values& dy, const Values& x, int64_t T, int64_t K, int64_t N);

// The rows have width E = w.size().
Values rms_norm(const Values& x, const Values& w, double eps);
struct NormGrad {
  Values dx, dw;
};
NormGrad rms_norm_backward(const Values& dy, const Values& x, const Values& w, double eps);

// Returns y [T, N] + bias [N], and in the backward the sum of dy over T.
Values add_bias(const Values& y, const Values& bias);
Values add_bias_backward(const Values& dy, int64_t N);

struct QkvDims {
  int64_t H, G, K;
  double rope_theta, eps;
  std::vector<float> rope_factors = {};  // factors of the K/2 frequencies; empty: 1
};
struct Qkv {
  Values q, k, v;
};
Qkv qk_norm_rope(const Values& qkv, const Values& q_norm, const Values& k_norm, const Ids& positions, const QkvDims& d);
struct QkvGrad {
  Values dqkv, dq_norm, dk_norm;
};
QkvGrad qk_norm_rope_backward(const Qkv& dy, const Values& qkv, const Values& q_norm, const Values& k_norm,
                              const Ids& positions, const QkvDims& d);

// These do the same without the norms.
Qkv rope(const Values& qkv, const Ids& positions, const QkvDims& d);
Values rope_backward(const Qkv& dy, const Ids& positions, const QkvDims& d);

// Turns gate_up [T, 2F] into [T, F].
Values silu_mul(const Values& gate_up, int64_t F);
Values silu_mul_backward(const Values& dy, const Values& gate_up, int64_t F);

// Does what silu_mul() does, with GELU in its tanh form.
Values gelu_mul(const Values& gate_up, int64_t F);
Values gelu_mul_backward(const Values& dy, const Values& gate_up, int64_t F);

// Tells which tokens' keys and values each query row sees: row t sees tokens sequences[sequence_of_row[t]][0 ..
// row_position[t]], with a window only the last `window` of those.
struct AttentionCase {
  int64_t H, G, K;
  std::vector<Ids> sequences;  // token at each position
  Ids sequence_of_row, row_position;
  int64_t window = 0;
};
struct AttentionResult {
  Values out, lse;  // [T, H, K], [T, H]
};
AttentionResult attention(const AttentionCase& c, const Values& q, const Values& k, const Values& v);
struct AttentionGrad {
  Values dq, dk, dv;  // dk, dv: [tokens, G, K]
};
// `out` is the forward's, perhaps rounded.
AttentionGrad attention_backward(const AttentionCase& c, const Values& dout, const Values& out, const Values& q,
                                 const Values& k, const Values& v);

struct Logprob {
  Values logp, entropy, lse;
};
Logprob logprob(const Values& logits, const Ids& targets, double temperature);
Values logprob_backward(const Values& dlogp, const Values& dentropy, const Values& logits, const Ids& targets,
                        double temperature);

}  // namespace tandem::device::reference
