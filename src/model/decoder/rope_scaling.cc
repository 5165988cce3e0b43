#include "model/decoder/rope_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

namespace tandem::model::decoder {
namespace {

constexpr double kMaxFactor = 1e6;           // far above any published model, and the slowest frequency is still one
constexpr double kMaxAttentionFactor = 1e3;  // the same
constexpr double kMaxBeta = 1e9;

double number_within(const ConfigReader& rope, const std::string& key, double number, double low, double high) {
  if (!(number >= low && number <= high)) {
    rope.refuse(key, fmt::format("is {}; it must lie between {} and {}", number, low, high));
  }
  return number;
}

double read_factor(const ConfigReader& rope) {
  return number_within(rope, "factor", rope.required_number("factor"), 1.0, kMaxFactor);
}

double read_original_positions(const ConfigReader& rope) {
  return static_cast<double>(
      rope.required_int("original_max_position_embeddings", 1, std::numeric_limits<int32_t>::max()));
}

// Every frequency is divided by `factor`: transformers' _compute_linear_scaling_rope_parameters.
ScaledRope scale_linearly(const ConfigReader& rope, double /*theta*/, int64_t dims) {
  return {.factors = std::vector<float>(static_cast<size_t>(dims / 2), static_cast<float>(1.0 / read_factor(rope)))};
}

// Scales each rotary frequency f_i = theta^(-2i/dims), of wavelength w_i = 2 pi / f_i, as transformers'
// _compute_llama3_parameters does: waves that are short against the context that the model was trained with keep their
// frequency, long ones are divided by `factor`, and those between are blended.
//
//   t_i = clamp((original / w_i - low) / (high - low), 0, 1)        t_i + (1 - t_i) / factor
ScaledRope scale_as_llama3(const ConfigReader& rope, double theta, int64_t dims) {
  const double factor = read_factor(rope), low = rope.required_number("low_freq_factor"),
               high = rope.required_number("high_freq_factor"), original = read_original_positions(rope);
  if (!(low > 0.0) || !std::isfinite(low)) {
    rope.refuse("low_freq_factor", fmt::format("is {}; it must be a finite number above 0", low));
  }
  if (!(high > low) || !std::isfinite(high)) {
    rope.refuse("high_freq_factor",
                fmt::format("is {}; it must be a finite number above low_freq_factor {}", high, low));
  }
  ScaledRope scaled;
  for (int64_t i = 0; i < dims / 2; ++i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dims));
    const double waves = original * frequency / (2.0 * std::numbers::pi);  // in the context of the training
    const double t = std::clamp((waves - low) / (high - low), 0.0, 1.0);
    scaled.factors.push_back(static_cast<float>(t + (1.0 - t) / factor));
  }
  return scaled;
}

// Returns YaRN's 0.1 m ln(factor) + 1 (Peng et al. 2023, equation 22), by which DeepSeek's models multiply m.
double attention_factor_of(double factor, double multiplier) {
  return factor <= 1.0 ? 1.0 : 0.1 * multiplier * std::log(factor) + 1.0;
}

double read_attention_factor(const ConfigReader& rope, double factor) {
  const double mscale = rope.number_or("mscale", 0.0), of_all = rope.number_or("mscale_all_dim", 0.0);
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    number_within(rope, key, rope.number_or(key, 0.0), 0.0, kMaxAttentionFactor);
  }
  const bool has_both = mscale != 0.0 && of_all != 0.0;
  const double computed = has_both ? attention_factor_of(factor, mscale) / attention_factor_of(factor, of_all)
                                   : attention_factor_of(factor, 1.0);
  return number_within(rope, "attention_factor", rope.number_or("attention_factor", computed), 1e-3,
                       kMaxAttentionFactor);
}

// Scales as YaRN does (Peng et al. 2023), by transformers' _compute_yarn_parameters: frequencies that turn more than
// beta_fast times in the context of the training stay, those that turn less than beta_slow times are divided by
// `factor`, and a ramp over their indices blends those between.
ScaledRope scale_as_yarn(const ConfigReader& rope, double theta, int64_t dims) {
  const double factor = read_factor(rope), original = read_original_positions(rope);
  if (!(theta > 1.0)) rope.refuse("rope_type", fmt::format("is yarn, which needs a rope_theta above 1, not {}", theta));
  // transformers reads a zero as unset.
  const auto beta_or = [&](const std::string& key, double fallback) {
    const double beta = rope.number_or(key, fallback);
    return number_within(rope, key, beta == 0.0 ? fallback : beta, 1e-6, kMaxBeta);
  };
  const double fast = beta_or("beta_fast", 32.0), slow = beta_or("beta_slow", 1.0);
  if (fast < slow) rope.refuse("beta_fast", fmt::format("is {}; it must not be below beta_slow {}", fast, slow));
  const bool truncates = rope.bool_or("truncate", true);

  // The index, as a fraction, of the frequency that turns so many times in the context of the training.
  const auto index_of = [&](double turns) {
    return static_cast<double>(dims) * std::log(original / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
  };
  const double first = truncates ? std::floor(index_of(fast)) : index_of(fast);
  const double last = truncates ? std::ceil(index_of(slow)) : index_of(slow);
  const double low = std::max(first, 0.0), top = std::min(last, static_cast<double>(dims - 1));
  const double high = low == top ? top + 0.001 : top;  // the ramp keeps a width, as transformers' does

  ScaledRope scaled{.factors = {}, .attention_factor = read_attention_factor(rope, factor)};
  for (int64_t i = 0; i < dims / 2; ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    scaled.factors.push_back(static_cast<float>(ramp / factor + (1.0 - ramp)));
  }
  return scaled;
}

const auto& forms() {
  static const std::array kForms = {
      RopeForm{.type = "linear", .keys = {"factor"}, .scale = scale_linearly},
      RopeForm{.type = "llama3",
               .keys = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
               .scale = scale_as_llama3},
      RopeForm{.type = "yarn",
               .keys = {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
                        "mscale", "mscale_all_dim", "truncate"},
               .scale = scale_as_yarn},
  };
  return kForms;
}

}  // namespace

const RopeForm* find_rope_form(const std::string& type) {
  const auto found = std::ranges::find(forms(), type, &RopeForm::type);
  return found == forms().end() ? nullptr : &*found;
}

std::string known_rope_forms() {
  std::string names;
  for (const RopeForm& form : forms()) names += (names.empty() ? "" : ", ") + std::string(form.type);
  return names;
}

}  // namespace tandem::model::decoder
