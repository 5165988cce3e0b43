// Llama's keys of config.json.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "model/decoder/config.h"
#include "model/llama/llama.h"

namespace tandem::model::llama {
namespace {

constexpr double kMaxFactor = 1e6;  // far above any published model, and the slowest frequency is still one

// What each rotary frequency f_i = theta^(-2i/K), of wavelength w_i = 2 pi / f_i, is multiplied by (transformers'
// _compute_llama3_parameters): waves that are short beside the context that the model was trained with keep their
// frequency, long ones are divided by `factor`, and those between are blended.
//
//   t_i = clamp((original / w_i - low) / (high - low), 0, 1)        t_i + (1 - t_i) / factor
std::vector<float> llama3_factors(const ConfigReader& rope, double theta, int64_t head_dim) {
  const double factor = rope.required_number("factor"), low = rope.required_number("low_freq_factor"),
               high = rope.required_number("high_freq_factor");
  const auto original = static_cast<double>(
      rope.required_int("original_max_position_embeddings", 1, std::numeric_limits<int32_t>::max()));
  if (!(factor >= 1.0 && factor <= kMaxFactor)) {
    rope.refuse("factor", fmt::format("is {}; it must lie between 1 and {}", factor, kMaxFactor));
  }
  if (!(low > 0.0) || !std::isfinite(low)) {
    rope.refuse("low_freq_factor", fmt::format("is {}; it must be a finite number above 0", low));
  }
  if (!(high > low) || !std::isfinite(high)) {
    rope.refuse("high_freq_factor",
                fmt::format("is {}; it must be a finite number above low_freq_factor {}", high, low));
  }
  std::vector<float> factors;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    const double waves = original * frequency / (2.0 * std::numbers::pi);  // in the context of the training
    const double t = std::clamp((waves - low) / (high - low), 0.0, 1.0);
    factors.push_back(static_cast<float>(t + (1.0 - t) / factor));
  }
  return factors;
}

}  // namespace

ModelConfig parse(const ConfigReader& reader) {
  ModelConfig config = decoder::read_decoder(reader);
  config.head_dim = decoder::read_head_dim_or_quotient(reader, config);
  const decoder::RopeKeys rope = decoder::read_rope(
      reader, {.type = "llama3",
               .keys = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}});
  config.rope_theta = rope.theta;
  if (rope.scaled) config.rope_factors = llama3_factors(*rope.scaled, rope.theta, config.head_dim);
  decoder::refuse_true(reader, "attention_bias", "biases are not supported");
  decoder::refuse_true(reader, "mlp_bias", "biases are not supported");
  return config;
}

}  // namespace tandem::model::llama
