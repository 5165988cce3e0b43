#include "device/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "device/sampling_weight.h"

namespace tandem::device {

namespace {

constexpr size_t kChunkTokens = 256;
constexpr size_t kLanes = 16;

// Returns the largest logit, or NaN if any logit is not finite.
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
  const float rounding = rounding_;
  const auto first_id = static_cast<int32_t>(begin);
  const auto count = static_cast<int32_t>(weights.size());
  float* out = weights.data();
  for (int32_t i = 0; i < count; ++i) {
    const float x = logits[i];
    const float w = weight(weight_exponent(x, max_logit, inverse_temperature), rounding);
    const bool kept = (x > cut.logit) | ((x == cut.logit) & (first_id + i <= cut.id));
    out[i] = kept ? w : 0.0F;
  }
}

double Sampler::weight_of(float logit) const {
  return static_cast<double>(weight(weight_exponent(logit, max_logit_, inverse_temperature_), rounding_));
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

Sampler::Cut Sampler::find_cut(const Draw& draw) {
  Cut cut{-std::numeric_limits<float>::infinity(), std::numeric_limits<int32_t>::max()};
  const auto stricter = [](Cut a, Cut b) { return Candidate{a.logit, a.id} < Candidate{b.logit, b.id} ? a : b; };
  const bool top_k = draw.top_k > 0 && static_cast<size_t>(draw.top_k) < logits_V_.size();
  if (top_k) {
    candidates_.clear();
    for (size_t i = 0; i < logits_V_.size(); ++i) candidates_.push_back({logits_V_[i], static_cast<int32_t>(i)});
    const auto last = candidates_.begin() + (draw.top_k - 1);
    std::nth_element(candidates_.begin(), last, candidates_.end());
    cut = stricter(cut, {last->logit, last->id});
    candidates_.erase(last + 1, candidates_.end());
  }
  if (draw.top_p < 1.0) cut = stricter(cut, cut_top_p(draw.top_p, top_k));
  if (std::isfinite(draw.log_min_p)) cut = stricter(cut, cut_min_p(draw.log_min_p));
  return cut;
}

Sampler::Cut Sampler::cut_top_p(double top_p, bool candidates_chosen) {
  double total = 0.0;
  if (candidates_chosen) {
    for (const Candidate& candidate : candidates_) total += weight_of(candidate.logit);
  } else {
    const Cut none{-std::numeric_limits<float>::infinity(), 0};
    total = weigh(none);
    // All tokens below this weight have less than 1 - top_p together, so the prefix ends before them. It is halved to
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

Sampler::Cut Sampler::cut_min_p(double log_min_p) const {
  // The cut is made in logits, since exp() may round two neighbours to one weight. The largest one always stays.
  float lowest = max_logit_;
  for (const float x : logits_V_) {
    const auto exponent = static_cast<double>(weight_exponent(x, max_logit_, inverse_temperature_));
    if (x < lowest && exponent >= log_min_p) lowest = x;
  }
  return {lowest, std::numeric_limits<int32_t>::max()};
}

size_t Sampler::find_token(double target, Cut cut) const {
  // Find the chunk first, then the token in it.
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
  const std::span<float> chunk(weights.data(), std::min(kChunkTokens, logits_V_.size() - begin));
  weigh_chunk(begin, cut, chunk);
  size_t chosen = 0;
  sum = before;
  for (size_t i = 0; i < chunk.size() && sum <= target; ++i) {
    if (chunk[i] == 0.0F) continue;
    chosen = i;
    sum += static_cast<double>(chunk[i]);
  }
  return begin + chosen;
}

SampledToken Sampler::draw(std::span<const float> logits_V, const Draw& draw) {
  logits_V_ = logits_V;
  max_logit_ = largest(logits_V);
  if (std::isnan(max_logit_)) return {};
  if (draw.temperature == 0.0) {
    const auto first = std::find(logits_V.begin(), logits_V.end(), max_logit_);
    return {.token = static_cast<int32_t>(first - logits_V.begin()), .behavior_logprob = 0.0F};
  }
  inverse_temperature_ = static_cast<float>(1.0 / draw.temperature);
  rounding_ = weight_rounding(static_cast<int64_t>(logits_V.size()));
  const Cut cut = find_cut(draw);
  const double total = weigh(cut);
  const double uniform = base::uniform(draw.seed, draw.sample_id, static_cast<uint64_t>(draw.position));
  const size_t token = find_token(uniform * total, cut);
  const auto exponent = static_cast<double>(weight_exponent(logits_V[token], max_logit_, inverse_temperature_));
  return {.token = static_cast<int32_t>(token), .behavior_logprob = static_cast<float>(exponent - std::log(total))};
}

}  // namespace tandem::device
