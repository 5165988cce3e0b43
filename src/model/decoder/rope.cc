#include "model/decoder/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <string>

namespace tandem::model::decoder {
namespace {

using base::Json;

constexpr double kMaxFactor = 1e6;  // far above any published model, and the slowest frequency is still one

// Returns what each rotary frequency f_i = theta^(-2i/K), of wavelength w_i = 2 pi / f_i, is multiplied by, as
// transformers' _compute_llama3_parameters has it: waves that are short against the context that the model was trained
// with keep their frequency, long ones are divided by `factor`, and those between are blended.
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

struct ScaledForm {
  std::string type;               // the form's name in rope_type; empty: none is computed
  std::vector<std::string> keys;  // its keys of config.json
};

ScaledForm form_of(RopeScaling scaling) {
  if (scaling == RopeScaling::kNone) return {};
  return {.type = "llama3",
          .keys = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}};
}

// Tells whether an object that describes the rotary embedding names the family's scaled form. UserError where it names
// another.
bool read_is_scaled(const ConfigReader& rope, const std::string& place, const ScaledForm& form) {
  bool is_scaled = false;
  for (const std::string key : {"rope_type", "type"}) {
    const std::string type = rope.string_or(key, "default");
    if (type == "default") continue;
    if (form.type.empty() || type != form.type) {
      const std::string known =
          form.type.empty() ? "scaled rotary embeddings are" : "another scaling than " + form.type + " is";
      rope.refuse(key, fmt::format("is {}: {} not supported; remove {} and keep sequences within "
                                   "max_position_embeddings",
                                   ConfigReader::shown(type), known, place));
    }
    is_scaled = true;
  }
  return is_scaled;
}

}  // namespace

Rope read_rope(const ConfigReader& reader, RopeScaling scaling, int64_t head_dim) {
  const ScaledForm form = form_of(scaling);
  std::optional<double> theta;
  std::optional<ConfigReader> scaled;  // the object that has the keys of the scaled form
  if (reader.has("rope_theta")) theta = reader.required_number("rope_theta");
  for (const std::string key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = reader.find(key);
    if (value == nullptr) continue;
    const ConfigReader rope(*value, reader.name() + ": " + key);
    const bool is_scaled = read_is_scaled(rope, key, form);
    if (is_scaled && scaled) rope.refuse("rope_type", "is said by rope_scaling too; remove one of the two");
    if (is_scaled) scaled = rope;
    if (rope.number_or("partial_rotary_factor", 1.0) != 1.0) {
      rope.refuse("partial_rotary_factor", "must be 1: partial rotation is not supported");
    }
    if (rope.has("rope_theta")) {
      const double inner = rope.required_number("rope_theta");
      if (theta && *theta != inner) {
        rope.refuse("rope_theta", fmt::format("is {} but rope_theta outside is {}; remove one", inner, *theta));
      }
      theta = inner;
    }
    for (const auto& [name, setting] : value->items()) {
      const bool is_known = name == "rope_type" || name == "type" || name == "rope_theta" ||
                            name == "partial_rotary_factor" ||
                            (is_scaled && std::find(form.keys.begin(), form.keys.end(), name) != form.keys.end());
      if (!is_known && !setting.is_null()) {
        rope.refuse(ConfigReader::shown(name),
                    is_scaled ? "is no key of " + form.type + ", the rotary embedding that rope_type names; remove it"
                              : "is not supported; only the default rotary embedding is");
      }
    }
  }
  if (!theta) reader.refuse("rope_theta", "is missing (and rope_parameters.rope_theta too); add one of the two");
  if (!(*theta >= 1.0) || !std::isfinite(*theta)) {
    reader.refuse("rope_theta", fmt::format("is {}; it must be a finite number of at least 1", *theta));
  }
  return {.theta = *theta, .factors = scaled ? llama3_factors(*scaled, *theta, head_dim) : std::vector<float>()};
}

}  // namespace tandem::model::decoder
