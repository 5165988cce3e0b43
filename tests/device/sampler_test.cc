// Tests of drawn tokens: frequencies, truncation, ties, determinism.
#include "device/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/rng.h"
#include "device/sampling_weight.h"

namespace tandem::device {
namespace {

std::vector<float> random_logits(uint32_t seed, size_t vocab, double scale) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0.0, scale);
  std::vector<float> logits(vocab);
  for (float& x : logits) x = static_cast<float>(normal(random));
  return logits;
}

// Returns the same draw for a token of a sample.
Draw at(Draw draw, uint64_t sample_id, int64_t position) {
  draw.sample_id = sample_id;
  draw.position = static_cast<int32_t>(position);
  return draw;
}

// Returns the distribution that a draw is promised to come from, in double and from its definition.
std::vector<double> exact_distribution(const std::vector<float>& logits, const Draw& params) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weight;
  for (const float x : logits) {
    weight.push_back(std::exp((static_cast<double>(x) - static_cast<double>(largest)) / params.temperature));
  }
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (params.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(params.top_k)));
  if (params.top_p < 1.0) {
    double total = 0.0;
    for (const size_t id : order) total += weight[id];
    double sum = 0.0;
    size_t kept = 0;
    while (sum < params.top_p * total) sum += weight[order[kept++]];
    order.resize(kept);
  }
  std::vector<double> probability(logits.size(), 0.0);
  double total = 0.0;
  for (const size_t id : order) {
    if (std::log(weight[id]) < params.log_min_p) continue;
    probability[id] = weight[id];
    total += weight[id];
  }
  for (double& p : probability) p /= total;
  return probability;
}

// Returns Pearson's statistic of draws against a distribution, in standard deviations above its mean; bins of few
// expected draws are put together.
double chi_square_excess(const std::vector<int64_t>& counts, const std::vector<double>& probability, int64_t draws) {
  double statistic = 0.0;
  double bins = 0.0;
  double rest_expected = 0.0;
  double rest_count = 0.0;
  const auto add_bin = [&](double expected, double count) {
    statistic += (count - expected) * (count - expected) / expected;
    ++bins;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probability[i] * static_cast<double>(draws);
    if (expected >= 8.0) {
      add_bin(expected, static_cast<double>(counts[i]));
    } else {
      rest_expected += expected;
      rest_count += static_cast<double>(counts[i]);
    }
  }
  if (rest_expected >= 8.0) add_bin(rest_expected, rest_count);
  const double freedom = std::max(1.0, bins - 1.0);
  return (statistic - freedom) / std::sqrt(2.0 * freedom);
}

void expect_distribution(const std::vector<float>& logits, const Draw& params) {
  const std::vector<double> probability = exact_distribution(logits, params);
  std::vector<int64_t> counts(logits.size(), 0);
  constexpr int64_t kDraws = 4000;
  Sampler sampler;
  for (int64_t i = 0; i < kDraws; ++i) {
    const SampledToken drawn = sampler.draw(logits, at(params, static_cast<uint64_t>(i / 10), i % 10));
    ASSERT_GE(drawn.token, 0);
    const auto token = static_cast<size_t>(drawn.token);
    ASSERT_GT(probability[token], 0.0) << "token " << token << " is behind the cut";
    ASSERT_NEAR(drawn.behavior_logprob, std::log(probability[token]), 2e-5);
    ++counts[token];
  }
  EXPECT_LT(chi_square_excess(counts, probability, kDraws), 5.0);
}

TEST(Sampler, DrawsFromTheExactDistribution) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Draw params;
    params.seed = seed;
    params.temperature = seed % 2 == 0 ? 1.0 : 0.7;
    expect_distribution(random_logits(seed, 37, 1.5), params);
    expect_distribution(random_logits(seed, 700, 3.0), params);
  }
}

TEST(Sampler, DrawsFromTheExactTruncatedDistribution) {
  for (uint32_t seed = 1; seed <= 16; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Draw params;
    params.seed = seed;
    params.temperature = 0.6 + 0.1 * static_cast<double>(random() % 8);
    if (random() % 2 == 0) params.top_k = 1 + static_cast<int32_t>(random() % 40);
    if (random() % 2 == 0) params.top_p = 0.3 + 0.1 * static_cast<double>(random() % 7);
    if (random() % 2 == 0) params.log_min_p = std::log(0.02 * static_cast<double>(1 + random() % 10));
    SCOPED_TRACE(testing::Message() << "top_k " << params.top_k << ", top_p " << params.top_p << ", log of min_p "
                                    << params.log_min_p << ", temperature " << params.temperature);
    expect_distribution(random_logits(seed, 20 + random() % 400, 2.0), params);
  }
}

// Among equal logits the lower ids come first, and the cuts are as sharp as with unequal ones.
TEST(Sampler, BreaksTiesByTokenId) {
  const std::vector<float> logits(270, 0.25F);
  const auto highest_token = [&logits](const Draw& params) {
    Sampler sampler;
    int32_t highest = 0;
    for (uint64_t sample = 0; sample < 2500; ++sample) {
      highest = std::max(highest, sampler.draw(logits, at(params, sample, 0)).token);
    }
    return highest;
  };
  Draw params;
  EXPECT_EQ(highest_token(params), 269);
  params.top_k = 3;
  EXPECT_EQ(highest_token(params), 2);
  params.top_k = -1;
  params.top_p = 0.125;
  EXPECT_EQ(highest_token(params), 33);  // 34 of 270 tokens are the first with at least an eighth
  params.top_k = 8;
  params.top_p = 0.5;
  EXPECT_EQ(highest_token(params), 3);
  params = Draw();
  params.log_min_p = 0.0;
  EXPECT_EQ(highest_token(params), 269);
}

TEST(Sampler, InvertsTheCumulativeDistributionInTokenOrder) {
  const std::vector<float> logits = random_logits(5, 1000, 2.0);
  Draw params;
  params.seed = 99;
  const std::vector<double> probability = exact_distribution(logits, params);
  Sampler sampler;
  for (uint64_t sample = 0; sample < 2000; ++sample) {
    const double uniform = base::uniform(params.seed, sample, 7);
    const auto token = static_cast<size_t>(sampler.draw(logits, at(params, sample, 7)).token);
    const double before = std::accumulate(probability.begin(), probability.begin() + static_cast<int64_t>(token), 0.0);
    EXPECT_GE(uniform, before - 1e-6) << "sample " << sample;
    EXPECT_LE(uniform, before + probability[token] + 1e-6) << "sample " << sample;
  }
}

// Because of this a GPU may cut a row as it likes.
TEST(Sampler, SumsOfWeightsAreTheSameInAnyOrder) {
  for (const size_t vocab : {size_t{1000}, size_t{151936}, size_t{1} << 18, (size_t{1} << 18) + 1}) {
    SCOPED_TRACE(testing::Message() << vocab << " tokens");
    std::mt19937 random(static_cast<uint32_t>(vocab));
    const std::vector<float> logits = random_logits(7, vocab, 4.0);
    const float largest = *std::max_element(logits.begin(), logits.end());
    const float rounding = weight_rounding(static_cast<int64_t>(vocab));
    std::vector<float> weights;
    for (const float x : logits) weights.push_back(weight(weight_exponent(x, largest, 1.0F / 0.7F), rounding));
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    // A sum of whole numbers of quanta says whether the one in float64 was exact.
    const double quantum = static_cast<double>(rounding) * 0x1p-23;
    uint64_t quanta = 0;
    for (const float w : weights) {
      ASSERT_EQ(std::fmod(static_cast<double>(w), quantum), 0.0);
      ASSERT_LE(w, 1.0F);
      quanta += static_cast<uint64_t>(static_cast<double>(w) / quantum);
    }
    EXPECT_EQ(total, static_cast<double>(quanta) * quantum);
    for (int order = 0; order < 5; ++order) {
      std::shuffle(weights.begin(), weights.end(), random);
      EXPECT_EQ(std::accumulate(weights.begin(), weights.end(), 0.0), total);
    }
  }
}

TEST(Sampler, WeightsAreOffByHalfAQuantumAtMost) {
  const float rounding = weight_rounding(151936);
  EXPECT_EQ(rounding, 0x1p-12F);
  EXPECT_EQ(weight_rounding((int64_t{1} << 18) + 1), 0x1p-11F);
  for (float x = 0.0F; x > -100.0F; x -= 0.013F) {
    const double exact = std::exp(static_cast<double>(x));
    EXPECT_NEAR(weight(x, rounding), exact, 0x1p-36 + 3e-7 * exact) << x;
  }
}

TEST(Sampler, DependsOnSeedSampleAndPositionAlone) {
  const std::vector<float> logits = random_logits(1, 500, 1.0);
  const std::vector<float> others = random_logits(2, 900, 1.0);
  Draw params;
  params.top_p = 0.9;
  const auto draw_all = [&](bool disturbed) {
    Sampler sampler;
    std::vector<int32_t> tokens;
    for (uint64_t i = 0; i < 64; ++i) {
      const uint64_t k = disturbed ? 63 - i : i;
      if (disturbed) sampler.draw(others, at(params, i, 3));
      tokens.push_back(sampler.draw(logits, at(params, k / 8, static_cast<int64_t>(k % 8))).token);
    }
    if (disturbed) std::reverse(tokens.begin(), tokens.end());
    return tokens;
  };
  const std::vector<int32_t> tokens = draw_all(false);
  EXPECT_EQ(tokens, draw_all(true));
  params.seed = 1;
  EXPECT_NE(tokens, draw_all(false));
}

TEST(Sampler, TakesTheLowestOfTheLargestLogitsAtTemperatureZero) {
  std::vector<float> logits = random_logits(3, 333, 1.0);
  logits[40] = logits[41] = logits[200] = 9.0F;
  Draw params;
  params.temperature = 0.0;
  Sampler sampler;
  EXPECT_EQ(sampler.draw(logits, at(params, 0, 0)).token, 40);
  logits[332] = 10.0F;  // after the last full run of lanes
  EXPECT_EQ(sampler.draw(logits, at(params, 0, 0)).token, 332);
}

TEST(Sampler, RefusesLogitsThatAreNotFinite) {
  Draw greedy;
  greedy.temperature = 0.0;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const size_t place : {size_t{0}, size_t{15}, size_t{99}}) {
      std::vector<float> logits = random_logits(3, 100, 1.0);
      logits[place] = bad;
      Sampler sampler;
      EXPECT_EQ(sampler.draw(logits, Draw()).token, -1);
      EXPECT_EQ(sampler.draw(logits, at(greedy, 0, 0)).token, -1);
    }
  }
}

TEST(Sampler, CopesWithLogitsFarApart) {
  std::vector<float> logits(2000, -1e30F);
  logits[1234] = 1e30F;
  Draw params;
  params.temperature = 1e-4;
  Sampler sampler;
  for (uint64_t sample = 0; sample < 100; ++sample) {
    const SampledToken drawn = sampler.draw(logits, at(params, sample, 0));
    EXPECT_EQ(drawn.token, 1234);
    EXPECT_EQ(drawn.behavior_logprob, 0.0F);
  }
}

}  // namespace
}  // namespace tandem::device
