#include "rollout/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/rng.h"

namespace tandem::rollout {

namespace {

constexpr size_t kChunkTokens = 256;
constexpr size_t kLanes = 16;
// Below, exp() is taken as 0; its power of two would come close to the denormals.
constexpr float kMinExponent = -86.0F;

// exp(x) for x <= 0, relative error below 2e-7. Ours rather than the C library's: it has the same bits everywhere,
// and loops over it vectorise.
inline float exp_nonpositive(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;    // 355/512: products with small integers are exact
  constexpr float kLn2Low = -2.12194440e-4F;  // ln 2 - kLn2High
  constexpr float kRoundShift = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const float clamped = x < kMinExponent ? kMinExponent : x;
  const float shifted = clamped * kLog2E + kRoundShift;
  const float n = shifted - kRoundShift;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;  // |r| <= ln(2) / 2
  float p = 1.0F / 5040.0F;
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRoundShift);
  const float value = std::bit_cast<float>(std::bit_cast<int32_t>(p) + exponent * (1 << 23));
  return x < kMinExponent ? 0.0F : value;
}

// The largest logit; NaN if any logit is not finite.
float largest(std::span<const float> logits) {
  std::array<float, kLanes> best;
  std::array<float, kLanes> not_finite{};
  best.fill(-std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float x = logits[i + lane];
      best[lane] = x > best[lane] ? x : best[lane];
      not_finite[lane] += x - x;  // 0 for a finite number, NaN otherwise
    }
  }
  for (; i < logits.size(); ++i) {
    best[0] = std::max(best[0], logits[i]);
    not_finite[0] += logits[i] - logits[i];
  }
  float result = best[0];
  for (size_t lane = 0; lane < kLanes; ++lane) result = std::max(result, best[lane]) + not_finite[lane];
  return result;
}

double sum_in_lanes(std::span<const float> values) {
  constexpr size_t kSumLanes = 8;
  std::array<double, kSumLanes> sums{};
  size_t i = 0;
  for (; i + kSumLanes <= values.size(); i += kSumLanes) {
    for (size_t lane = 0; lane < kSumLanes; ++lane) sums[lane] += static_cast<double>(values[i + lane]);
  }
  for (; i < values.size(); ++i) sums[0] += static_cast<double>(values[i]);
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace

void Sampler::weigh_chunk(size_t begin, Cut cut, std::span<float> weights) const {
  const float* logits = logits_V_.data() + begin;
  const float max_logit = max_logit_;
  const float inverse_temperature = inverse_temperature_;
  const auto first_id = static_cast<int32_t>(begin);
  const auto count = static_cast<int32_t>(weights.size());
  float* out = weights.data();
  for (int32_t i = 0; i < count; ++i) {
    const float x = logits[i];
    const float weight = exp_nonpositive((x - max_logit) * inverse_temperature);
    const bool kept = (x > cut.logit) | ((x == cut.logit) & (first_id + i <= cut.id));
    out[i] = kept ? weight : 0.0F;
  }
}

double Sampler::weight_of(float logit) const {
  return static_cast<double>(exp_nonpositive((logit - max_logit_) * inverse_temperature_));
}

double Sampler::weigh(Cut cut) {
  std::array<float, kChunkTokens> weights;
  chunk_sums_.clear();
  double total = 0.0;
  for (size_t begin = 0; begin < logits_V_.size(); begin += kChunkTokens) {
    const std::span<float> chunk(weights.data(), std::min(kChunkTokens, logits_V_.size() - begin));
    weigh_chunk(begin, cut, chunk);
    chunk_sums_.push_back(sum_in_lanes(chunk));
    total += chunk_sums_.back();
  }
  return total;
}

Sampler::Cut Sampler::find_cut(const rl::SamplingParams& params) {
  Cut cut{-std::numeric_limits<float>::infinity(), std::numeric_limits<int32_t>::max()};
  const auto stricter = [](Cut a, Cut b) { return Candidate{a.logit, a.id} < Candidate{b.logit, b.id} ? a : b; };
  const bool top_k = params.top_k > 0 && params.top_k < static_cast<int64_t>(logits_V_.size());
  if (top_k) {
    candidates_.clear();
    for (size_t i = 0; i < logits_V_.size(); ++i) candidates_.push_back({logits_V_[i], static_cast<int32_t>(i)});
    const auto last = candidates_.begin() + (params.top_k - 1);
    std::nth_element(candidates_.begin(), last, candidates_.end());
    cut = stricter(cut, {last->logit, last->id});
    candidates_.erase(last + 1, candidates_.end());
  }
  if (params.top_p < 1.0) cut = stricter(cut, cut_top_p(params.top_p, top_k));
  if (params.min_p > 0.0) cut = stricter(cut, cut_min_p(params.min_p));
  return cut;
}

Sampler::Cut Sampler::cut_top_p(double top_p, bool candidates_chosen) {
  double total = 0.0;
  if (candidates_chosen) {
    std::sort(candidates_.begin(), candidates_.end());  // so that the sum does not depend on how they were chosen
    for (const Candidate& candidate : candidates_) total += weight_of(candidate.logit);
  } else {
    const Cut none{-std::numeric_limits<float>::infinity(), 0};
    total = weigh(none);
    // All tokens below this weight have less than 1 - top_p together, so the prefix ends before them. Half of it, to
    // stay clear of rounding.
    const double floor = 0.5 * (1.0 - top_p) * total / static_cast<double>(logits_V_.size());
    candidates_.clear();
    std::array<float, kChunkTokens> weights;
    for (size_t begin = 0; begin < logits_V_.size(); begin += kChunkTokens) {
      const std::span<float> chunk(weights.data(), std::min(kChunkTokens, logits_V_.size() - begin));
      weigh_chunk(begin, none, chunk);
      for (size_t i = 0; i < chunk.size(); ++i) {
        if (static_cast<double>(chunk[i]) < floor) continue;
        candidates_.push_back({logits_V_[begin + i], static_cast<int32_t>(begin + i)});
      }
    }
  }
  // Sort piece by piece, only as far as the prefix reaches.
  size_t sorted_end = 0;
  double sum = 0.0;
  for (size_t piece = 128; sorted_end < candidates_.size(); piece *= 4) {
    const size_t end = std::min(candidates_.size(), sorted_end + piece);
    const auto begin_it = candidates_.begin() + static_cast<std::ptrdiff_t>(sorted_end);
    const auto end_it = candidates_.begin() + static_cast<std::ptrdiff_t>(end);
    if (end < candidates_.size()) std::nth_element(begin_it, end_it, candidates_.end());
    std::sort(begin_it, end_it);
    for (; sorted_end < end; ++sorted_end) {
      sum += weight_of(candidates_[sorted_end].logit);
      if (sum >= top_p * total) return {candidates_[sorted_end].logit, candidates_[sorted_end].id};
    }
  }
  return {candidates_.back().logit, candidates_.back().id};
}

Sampler::Cut Sampler::cut_min_p(double min_p) const {
  // In logits: exp() may round two neighbours to one weight. The largest one always stays.
  const double bound = std::log(min_p);
  float lowest = max_logit_;
  for (const float x : logits_V_) {
    const double exponent = static_cast<double>((x - max_logit_) * inverse_temperature_);
    if (x < lowest && exponent >= bound) lowest = x;
  }
  return {lowest, std::numeric_limits<int32_t>::max()};
}

SampledToken Sampler::draw(std::span<const float> logits_V, const rl::SamplingParams& params, uint64_t sample_id,
                           int64_t position) {
  logits_V_ = logits_V;
  max_logit_ = largest(logits_V);
  if (std::isnan(max_logit_)) return {};
  if (params.temperature == 0.0) {
    const auto first = std::find(logits_V.begin(), logits_V.end(), max_logit_);
    return {.token = static_cast<int32_t>(first - logits_V.begin()), .behavior_logprob = 0.0F};
  }
  inverse_temperature_ = static_cast<float>(1.0 / params.temperature);
  const Cut cut = find_cut(params);
  const double total = weigh(cut);
  const double target = base::uniform(params.seed, sample_id, static_cast<uint64_t>(position)) * total;

  // The chunk, then the token, in which the running sum passes the target; behind rounding, the last that has weight.
  size_t chosen_chunk = 0;
  double before = 0.0;
  double sum = 0.0;
  for (size_t chunk = 0; chunk < chunk_sums_.size() && sum <= target; ++chunk) {
    if (chunk_sums_[chunk] <= 0.0) continue;
    chosen_chunk = chunk;
    before = sum;
    sum += chunk_sums_[chunk];
  }
  const size_t begin = chosen_chunk * kChunkTokens;
  std::array<float, kChunkTokens> weights;
  const std::span<float> chunk(weights.data(), std::min(kChunkTokens, logits_V.size() - begin));
  weigh_chunk(begin, cut, chunk);
  size_t chosen = 0;
  sum = before;
  for (size_t i = 0; i < chunk.size() && sum <= target; ++i) {
    if (chunk[i] == 0.0F) continue;
    chosen = i;
    sum += static_cast<double>(chunk[i]);
  }
  const float logit = logits_V[begin + chosen];
  const double logprob = static_cast<double>((logit - max_logit_) * inverse_temperature_) - std::log(total);
  return {.token = static_cast<int32_t>(begin + chosen), .behavior_logprob = static_cast<float>(logprob)};
}

}  // namespace tandem::rollout
