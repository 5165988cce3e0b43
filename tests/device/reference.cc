#include "tests/device/reference.h"

#include <algorithm>
#include <cmath>

namespace tandem::device::reference {
namespace {

size_t at(int64_t index) { return static_cast<size_t>(index); }
int64_t rows_of(const Values& x, int64_t width) { return static_cast<int64_t>(x.size()) / width; }

// The place of one head in a qkv row of (H + 2G) K.
struct Head {
  int64_t in_row;     // offset in the qkv row
  int64_t in_result;  // offset in q, k or v of this token
  char part;
};
std::vector<Head> heads_of(const QkvDims& d) {
  std::vector<Head> heads;
  for (int64_t h = 0; h < d.H; ++h) heads.push_back({h * d.K, h * d.K, 'q'});
  for (int64_t g = 0; g < d.G; ++g) heads.push_back({(d.H + g) * d.K, g * d.K, 'k'});
  for (int64_t g = 0; g < d.G; ++g) heads.push_back({(d.H + d.G + g) * d.K, g * d.K, 'v'});
  return heads;
}

// The angle is a float32 product, as the contract says; its cosine and sine are exact.
double angle(int32_t position, int64_t pair, const QkvDims& d) {
  const float exponent = static_cast<float>(2 * pair) / static_cast<float>(d.K);
  float frequency = 1.0F / static_cast<float>(std::pow(d.rope_theta, exponent));
  if (!d.rope_factors.empty()) frequency *= d.rope_factors[at(pair)];
  return static_cast<double>(static_cast<float>(position) * frequency);
}

Values slice(const Values& x, int64_t begin, int64_t size) { return {x.begin() + begin, x.begin() + begin + size}; }

void turn(Values& head, int32_t position, double sign, const QkvDims& d) {
  for (int64_t i = 0; i < d.K / 2; ++i) {
    const double c = std::cos(angle(position, i, d)), s = sign * std::sin(angle(position, i, d));
    const double a = head[at(i)], b = head[at(i + d.K / 2)];
    head[at(i)] = a * c - b * s;
    head[at(i + d.K / 2)] = b * c + a * s;
  }
}

// Softmax weights of one row and head over the keys it sees, and their logsumexp.
struct Weights {
  Values p;
  double lse = 0;
};
Weights weights_of(const AttentionCase& c, int64_t t, int64_t h, const Values& q, const Values& k) {
  const Ids& tokens = c.sequences[at(c.sequence_of_row[at(t)])];
  const int64_t g = h / (c.H / c.G);
  Weights w;
  double largest = -INFINITY;
  for (int64_t j = 0; j <= c.row_position[at(t)]; ++j) {
    double score = 0;
    for (int64_t i = 0; i < c.K; ++i)
      score += q[at((t * c.H + h) * c.K + i)] * k[at((tokens[at(j)] * c.G + g) * c.K + i)];
    const bool is_seen = c.window == 0 || j > c.row_position[at(t)] - c.window;
    w.p.push_back(is_seen ? score / std::sqrt(static_cast<double>(c.K)) : -INFINITY);
    largest = std::max(largest, w.p.back());
  }
  double sum = 0;
  for (const double score : w.p) sum += std::exp(score - largest);
  w.lse = largest + std::log(sum);
  for (double& p : w.p) p = std::exp(p - w.lse);
  return w;
}

}  // namespace

Values linear(const Values& x, const Values& w, int64_t T, int64_t K, int64_t N) {
  Values y(at(T * N), 0.0);
  for (int64_t t = 0; t < T; ++t)
    for (int64_t n = 0; n < N; ++n)
      for (int64_t k = 0; k < K; ++k) y[at(t * N + n)] += x[at(t * K + k)] * w[at(n * K + k)];
  return y;
}

Values linear_grad_input(const Values& dy, const Values& w, int64_t T, int64_t K, int64_t N) {
  Values dx(at(T * K), 0.0);
  for (int64_t t = 0; t < T; ++t)
    for (int64_t n = 0; n < N; ++n)
      for (int64_t k = 0; k < K; ++k) dx[at(t * K + k)] += dy[at(t * N + n)] * w[at(n * K + k)];
  return dx;
}

Values linear_grad_weight(const Values& dy, const Values& x, int64_t T, int64_t K, int64_t N) {
  Values dw(at(N * K), 0.0);
  for (int64_t t = 0; t < T; ++t)
    for (int64_t n = 0; n < N; ++n)
      for (int64_t k = 0; k < K; ++k) dw[at(n * K + k)] += dy[at(t * N + n)] * x[at(t * K + k)];
  return dw;
}

Values rms_norm(const Values& x, const Values& w, double eps) {
  const int64_t E = static_cast<int64_t>(w.size());
  Values y(x.size());
  for (int64_t t = 0; t < rows_of(x, E); ++t) {
    double squares = 0;
    for (int64_t e = 0; e < E; ++e) squares += x[at(t * E + e)] * x[at(t * E + e)];
    const double root = std::sqrt(squares / static_cast<double>(E) + eps);
    for (int64_t e = 0; e < E; ++e) y[at(t * E + e)] = x[at(t * E + e)] / root * w[at(e)];
  }
  return y;
}

NormGrad rms_norm_backward(const Values& dy, const Values& x, const Values& w, double eps) {
  const int64_t E = static_cast<int64_t>(w.size());
  NormGrad grad{Values(x.size()), Values(w.size(), 0.0)};
  for (int64_t t = 0; t < rows_of(x, E); ++t) {
    double squares = 0, dot = 0;
    for (int64_t e = 0; e < E; ++e) {
      squares += x[at(t * E + e)] * x[at(t * E + e)];
      dot += dy[at(t * E + e)] * w[at(e)] * x[at(t * E + e)];
    }
    const double root = std::sqrt(squares / static_cast<double>(E) + eps);
    for (int64_t e = 0; e < E; ++e) {
      const double xe = x[at(t * E + e)], dye = dy[at(t * E + e)];
      grad.dx[at(t * E + e)] = dye * w[at(e)] / root - xe * dot / (static_cast<double>(E) * root * root * root);
      grad.dw[at(e)] += dye * xe / root;
    }
  }
  return grad;
}

Values add_bias(const Values& y, const Values& bias) {
  Values sum(y.size());
  for (size_t i = 0; i < y.size(); ++i) sum[i] = y[i] + bias[i % bias.size()];
  return sum;
}

Values add_bias_backward(const Values& dy, int64_t N) {
  Values sum(at(N), 0.0);
  for (size_t i = 0; i < dy.size(); ++i) sum[i % sum.size()] += dy[i];
  return sum;
}

Qkv rope(const Values& qkv, const Ids& positions, const QkvDims& d) {
  const int64_t T = static_cast<int64_t>(positions.size()), N = (d.H + 2 * d.G) * d.K;
  Qkv result;
  for (int64_t t = 0; t < T; ++t) {
    for (const Head& head : heads_of(d)) {
      Values x = slice(qkv, t * N + head.in_row, d.K);
      if (head.part != 'v') turn(x, positions[at(t)], 1.0, d);
      Values& y = head.part == 'q' ? result.q : head.part == 'k' ? result.k : result.v;
      y.insert(y.end(), x.begin(), x.end());
    }
  }
  return result;
}

Values rope_backward(const Qkv& dy, const Ids& positions, const QkvDims& d) {
  Values dqkv;
  for (int64_t t = 0; t < static_cast<int64_t>(positions.size()); ++t) {
    for (const Head& head : heads_of(d)) {
      const Values& from = head.part == 'q' ? dy.q : head.part == 'k' ? dy.k : dy.v;
      Values dx = slice(from, t * (head.part == 'q' ? d.H : d.G) * d.K + head.in_result, d.K);
      if (head.part != 'v') turn(dx, positions[at(t)], -1.0, d);
      dqkv.insert(dqkv.end(), dx.begin(), dx.end());
    }
  }
  return dqkv;
}

Qkv qk_norm_rope(const Values& qkv, const Values& q_norm, const Values& k_norm, const Ids& positions,
                 const QkvDims& d) {
  const int64_t T = static_cast<int64_t>(positions.size()), N = (d.H + 2 * d.G) * d.K;
  Qkv result{Values(at(T * d.H * d.K)), Values(at(T * d.G * d.K)), Values(at(T * d.G * d.K))};
  for (int64_t t = 0; t < T; ++t) {
    for (const Head& head : heads_of(d)) {
      Values x = slice(qkv, t * N + head.in_row, d.K);
      if (head.part != 'v') {
        x = rms_norm(x, head.part == 'q' ? q_norm : k_norm, d.eps);
        turn(x, positions[at(t)], 1.0, d);
      }
      Values& y = head.part == 'q' ? result.q : head.part == 'k' ? result.k : result.v;
      const int64_t row = t * (head.part == 'q' ? d.H : d.G) * d.K;
      std::copy(x.begin(), x.end(), y.begin() + row + head.in_result);
    }
  }
  return result;
}

QkvGrad qk_norm_rope_backward(const Qkv& dy, const Values& qkv, const Values& q_norm, const Values& k_norm,
                              const Ids& positions, const QkvDims& d) {
  const int64_t T = static_cast<int64_t>(positions.size()), N = (d.H + 2 * d.G) * d.K;
  QkvGrad grad{Values(qkv.size()), Values(at(d.K), 0.0), Values(at(d.K), 0.0)};
  for (int64_t t = 0; t < T; ++t) {
    for (const Head& head : heads_of(d)) {
      const Values& from = head.part == 'q' ? dy.q : head.part == 'k' ? dy.k : dy.v;
      Values dx = slice(from, t * (head.part == 'q' ? d.H : d.G) * d.K + head.in_result, d.K);
      if (head.part != 'v') {
        turn(dx, positions[at(t)], -1.0, d);
        const bool is_q = head.part == 'q';
        NormGrad norm = rms_norm_backward(dx, slice(qkv, t * N + head.in_row, d.K), is_q ? q_norm : k_norm, d.eps);
        dx = norm.dx;
        Values& dw = is_q ? grad.dq_norm : grad.dk_norm;
        for (size_t i = 0; i < dw.size(); ++i) dw[i] += norm.dw[i];
      }
      std::copy(dx.begin(), dx.end(), grad.dqkv.begin() + t * N + head.in_row);
    }
  }
  return grad;
}

Values silu_mul(const Values& gate_up, int64_t F) {
  Values y;
  for (int64_t t = 0; t < rows_of(gate_up, 2 * F); ++t) {
    for (int64_t f = 0; f < F; ++f) {
      const double gate = gate_up[at(t * 2 * F + f)];
      y.push_back(gate / (1.0 + std::exp(-gate)) * gate_up[at(t * 2 * F + F + f)]);
    }
  }
  return y;
}

Values silu_mul_backward(const Values& dy, const Values& gate_up, int64_t F) {
  Values grad(gate_up.size());
  for (int64_t t = 0; t < rows_of(gate_up, 2 * F); ++t) {
    for (int64_t f = 0; f < F; ++f) {
      const double gate = gate_up[at(t * 2 * F + f)], up = gate_up[at(t * 2 * F + F + f)], d = dy[at(t * F + f)];
      const double sigmoid = 1.0 / (1.0 + std::exp(-gate));
      grad[at(t * 2 * F + f)] = d * up * (sigmoid + gate * sigmoid * (1.0 - sigmoid));
      grad[at(t * 2 * F + F + f)] = d * gate * sigmoid;
    }
  }
  return grad;
}

namespace {

// gelu(g) = g / 2 (1 + tanh(z)), and the derivative.
struct Gelu {
  explicit Gelu(double g) {
    const double c = std::sqrt(2.0 / std::acos(-1.0)), t = std::tanh(c * (g + 0.044715 * g * g * g));
    value = 0.5 * g * (1.0 + t);
    slope = 0.5 * (1.0 + t) + 0.5 * g * (1.0 - t * t) * c * (1.0 + 3.0 * 0.044715 * g * g);
  }
  double value, slope;
};

}  // namespace

Values gelu_mul(const Values& gate_up, int64_t F) {
  Values y;
  for (int64_t t = 0; t < rows_of(gate_up, 2 * F); ++t) {
    for (int64_t f = 0; f < F; ++f)
      y.push_back(Gelu(gate_up[at(t * 2 * F + f)]).value * gate_up[at(t * 2 * F + F + f)]);
  }
  return y;
}

Values gelu_mul_backward(const Values& dy, const Values& gate_up, int64_t F) {
  Values grad(gate_up.size());
  for (int64_t t = 0; t < rows_of(gate_up, 2 * F); ++t) {
    for (int64_t f = 0; f < F; ++f) {
      const Gelu gelu(gate_up[at(t * 2 * F + f)]);
      const double up = gate_up[at(t * 2 * F + F + f)], d = dy[at(t * F + f)];
      grad[at(t * 2 * F + f)] = d * up * gelu.slope;
      grad[at(t * 2 * F + F + f)] = d * gelu.value;
    }
  }
  return grad;
}

AttentionResult attention(const AttentionCase& c, const Values& q, const Values& k, const Values& v) {
  const int64_t T = static_cast<int64_t>(c.sequence_of_row.size());
  AttentionResult result{Values(q.size(), 0.0), Values(at(T * c.H))};
  for (int64_t t = 0; t < T; ++t) {
    const Ids& tokens = c.sequences[at(c.sequence_of_row[at(t)])];
    for (int64_t h = 0; h < c.H; ++h) {
      const Weights w = weights_of(c, t, h, q, k);
      result.lse[at(t * c.H + h)] = w.lse;
      for (size_t j = 0; j < w.p.size(); ++j)
        for (int64_t i = 0; i < c.K; ++i)
          result.out[at((t * c.H + h) * c.K + i)] += w.p[j] * v[at((tokens[j] * c.G + h / (c.H / c.G)) * c.K + i)];
    }
  }
  return result;
}

AttentionGrad attention_backward(const AttentionCase& c, const Values& dout, const Values& out, const Values& q,
                                 const Values& k, const Values& v) {
  const int64_t T = static_cast<int64_t>(c.sequence_of_row.size());
  AttentionGrad grad{Values(q.size(), 0.0), Values(k.size(), 0.0), Values(v.size(), 0.0)};
  for (int64_t t = 0; t < T; ++t) {
    const Ids& tokens = c.sequences[at(c.sequence_of_row[at(t)])];
    for (int64_t h = 0; h < c.H; ++h) {
      const int64_t row = (t * c.H + h) * c.K;
      const Weights w = weights_of(c, t, h, q, k);
      double mean = 0;
      for (int64_t i = 0; i < c.K; ++i) mean += dout[at(row + i)] * out[at(row + i)];
      for (size_t j = 0; j < w.p.size(); ++j) {
        const int64_t key = (tokens[j] * c.G + h / (c.H / c.G)) * c.K;
        double dp = 0;
        for (int64_t i = 0; i < c.K; ++i) dp += dout[at(row + i)] * v[at(key + i)];
        const double dscore = w.p[j] * (dp - mean) / std::sqrt(static_cast<double>(c.K));
        for (int64_t i = 0; i < c.K; ++i) {
          grad.dq[at(row + i)] += dscore * k[at(key + i)];
          grad.dk[at(key + i)] += dscore * q[at(row + i)];
          grad.dv[at(key + i)] += w.p[j] * dout[at(row + i)];
        }
      }
    }
  }
  return grad;
}

Logprob logprob(const Values& logits, const Ids& targets, double temperature) {
  const int64_t R = static_cast<int64_t>(targets.size()), V = rows_of(logits, R);
  Logprob result;
  for (int64_t r = 0; r < R; ++r) {
    Values x = slice(logits, r * V, V);
    for (double& value : x) value /= temperature;
    const double largest = *std::max_element(x.begin(), x.end());
    double sum = 0, entropy = 0;
    for (const double value : x) sum += std::exp(value - largest);
    const double lse = largest + std::log(sum);
    for (const double value : x) entropy -= std::exp(value - lse) * (value - lse);
    result.lse.push_back(lse);
    result.entropy.push_back(entropy);
    result.logp.push_back(targets[at(r)] < 0 ? 0.0 : x[at(targets[at(r)])] - lse);
  }
  return result;
}

Values logprob_backward(const Values& dlogp, const Values& dentropy, const Values& logits, const Ids& targets,
                        double temperature) {
  const int64_t R = static_cast<int64_t>(targets.size()), V = rows_of(logits, R);
  const Logprob forward = logprob(logits, targets, temperature);
  Values grad(logits.size());
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t j = 0; j < V; ++j) {
      const double log_p = logits[at(r * V + j)] / temperature - forward.lse[at(r)], p = std::exp(log_p);
      const double of_logp = targets[at(r)] < 0 ? 0.0 : (targets[at(r)] == j ? 1.0 : 0.0) - p;
      const double of_entropy = -p * (log_p + forward.entropy[at(r)]);
      grad[at(r * V + j)] = (dlogp[at(r)] * of_logp + dentropy[at(r)] * of_entropy) / temperature;
    }
  }
  return grad;
}

}  // namespace tandem::device::reference
