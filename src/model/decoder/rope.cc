#include "model/decoder/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "model/decoder/rope_scaling.h"

namespace tandem::model::decoder {
namespace {

using base::Json;

// Returns the scaled form that an object of the rotary embedding names, or nullptr for the default one. UserError where
// Tandem does not know it.
const RopeForm* read_form(const ConfigReader& rope, const Family& family, const std::string& place) {
  const RopeForm* form = nullptr;
  for (const std::string key : {"rope_type", "type"}) {
    const std::string type = rope.string_or(key, "default");
    if (type == "default") continue;
    if (!family.scales_rope) {
      rope.refuse(key, fmt::format("is {}: {} is computed with the default rotary embedding alone",
                                   ConfigReader::shown(type), family.architecture));
    }
    const RopeForm* named = find_rope_form(type);
    if (named == nullptr || (form != nullptr && form != named)) {
      rope.refuse(key, fmt::format("is {}: another scaling than {} is not supported; remove {} and keep sequences "
                                   "within max_position_embeddings",
                                   ConfigReader::shown(type), known_rope_forms(), place));
    }
    form = named;
  }
  return form;
}

void refuse_unknown_keys(const ConfigReader& rope, const RopeForm* form) {
  for (const auto& [name, setting] : rope.object().items()) {
    const bool is_known =
        name == "rope_type" || name == "type" || name == "rope_theta" || name == "partial_rotary_factor" ||
        (form != nullptr && std::find(form->keys.begin(), form->keys.end(), name) != form->keys.end());
    if (is_known || setting.is_null()) continue;
    rope.refuse(ConfigReader::shown(name), form != nullptr ? fmt::format("is no key of {}, the rotary embedding that "
                                                                         "rope_type names; remove it",
                                                                         form->type)
                                                           : "is not supported; only the default rotary embedding is");
  }
}

// Reads partial_rotary_factor of config.json or of an object of the rotary embedding into `factor`.
void read_rotary_factor(const ConfigReader& reader, const Family& family, std::optional<double>& factor) {
  constexpr const char* kKey = "partial_rotary_factor";
  if (!reader.has(kKey)) return;
  const double said = reader.required_number(kKey);
  if (family.rotary_factor == 0.0 && said != 1.0) {
    reader.refuse(kKey, fmt::format("must be 1: partial rotation is not supported for {}", family.architecture));
  }
  if (factor && *factor != said) {
    reader.refuse(kKey, fmt::format("is {} but another one is {}; remove the wrong one", said, *factor));
  }
  factor = said;
}

// Returns how many dims of a head are rotated: an even number.
int64_t rotary_dims_of(const ConfigReader& reader, double factor, int64_t head_dim) {
  const double dims = std::floor(static_cast<double>(head_dim) * factor);
  if (!(dims >= 2.0 && dims <= static_cast<double>(head_dim)) || static_cast<int64_t>(dims) % 2 != 0) {
    reader.refuse("partial_rotary_factor",
                  fmt::format("is {}, which rotates {} of {} dims of a head; it must rotate an even number of them",
                              factor, dims, head_dim));
  }
  return static_cast<int64_t>(dims);
}

void check_theta(const ConfigReader& reader, const std::string& key, double theta) {
  if (!(theta >= 1.0) || !std::isfinite(theta)) {
    reader.refuse(key, fmt::format("is {}; it must be a finite number of at least 1", theta));
  }
}

// Returns theta and factors for the frequencies of the whole head, given those of its rotated dims.
Rope over_the_head(const ConfigReader& reader, Rope rope, int64_t head_dim) {
  const int64_t dims = rope.rotary_dims;
  if (dims == head_dim) return rope;
  rope.theta = std::pow(rope.theta, static_cast<double>(head_dim) / static_cast<double>(dims));
  check_theta(reader, "rope_theta", rope.theta);
  if (rope.factors.empty()) rope.factors.assign(static_cast<size_t>(dims / 2), 1.0F);
  rope.factors.resize(static_cast<size_t>(head_dim / 2), 0.0F);
  return rope;
}

constexpr const char *kFull = "full_attention", *kSliding = "sliding_attention";

// Returns the object that `key` has for the layers of that type. A family whose layers with a window have another
// rotary embedding than the rest may have an object of each type in rope_parameters.
std::optional<ConfigReader> rope_object(const ConfigReader& reader, const Family& family, const std::string& key,
                                        const char* type) {
  const Json* value = reader.find(key);
  if (value == nullptr) return std::nullopt;
  const ConfigReader whole(*value, reader.name() + ": " + key);
  const bool is_by_type = family.window_rope != WindowRope::kSame && (whole.has(kFull) || whole.has(kSliding));
  if (!is_by_type) return type == kFull ? std::optional(whole) : std::nullopt;
  for (const auto& [name, setting] : value->items()) {
    if (name != kFull && name != kSliding) {
      whole.refuse(ConfigReader::shown(name), fmt::format("is neither {} nor {}; remove it", kFull, kSliding));
    }
  }
  const Json* of_type = whole.find(type);
  return of_type == nullptr ? std::nullopt : std::optional(ConfigReader(*of_type, whole.name() + ": " + type));
}

}  // namespace

Rope read_window_rope(const ConfigReader& reader, const Family& family, const Rope& rope) {
  if (family.window_rope == WindowRope::kSame) return rope;
  Rope unscaled{.theta = rope.theta, .factors = {}, .rotary_dims = rope.rotary_dims};
  if (family.window_rope == WindowRope::kOwn) {
    constexpr const char* kBase = "rope_local_base_freq";
    constexpr double kDefaultBase = 1e4;
    unscaled.theta = reader.number_or(kBase, kDefaultBase);
    check_theta(reader, kBase, unscaled.theta);
  }
  if (const std::optional<ConfigReader> own = rope_object(reader, family, "rope_parameters", kSliding)) {
    if (read_form(*own, family, kSliding) != nullptr) own->refuse("rope_type", "must be \"default\" here");
    refuse_unknown_keys(*own, nullptr);
    if (own->has("rope_theta")) {
      unscaled.theta = own->required_number("rope_theta");
      check_theta(*own, "rope_theta", unscaled.theta);
    }
  }
  return unscaled;
}

Rope read_rope(const ConfigReader& reader, const Family& family, int64_t head_dim) {
  std::optional<double> theta, rotary_factor;
  read_rotary_factor(reader, family, rotary_factor);
  std::optional<ConfigReader> scaled;  // the object that has the keys of the scaled form
  const RopeForm* form = nullptr;
  if (reader.has("rope_theta")) theta = reader.required_number("rope_theta");
  for (const std::string key : {"rope_scaling", "rope_parameters"}) {
    const std::optional<ConfigReader> found = rope_object(reader, family, key, kFull);
    if (!found) continue;
    const ConfigReader& rope = *found;
    const RopeForm* named = read_form(rope, family, key);
    if (named != nullptr && scaled) rope.refuse("rope_type", "is said by rope_scaling too; remove one of the two");
    if (named != nullptr) {
      scaled = rope;
      form = named;
    }
    read_rotary_factor(rope, family, rotary_factor);
    if (rope.has("rope_theta")) {
      const double inner = rope.required_number("rope_theta");
      if (theta && *theta != inner) {
        rope.refuse("rope_theta", fmt::format("is {} but rope_theta outside is {}; remove one", inner, *theta));
      }
      theta = inner;
    }
    refuse_unknown_keys(rope, named);
  }
  if (!theta) reader.refuse("rope_theta", "is missing (and rope_parameters.rope_theta too); add one of the two");
  check_theta(reader, "rope_theta", *theta);
  const double factor = rotary_factor.value_or(family.rotary_factor == 0.0 ? 1.0 : family.rotary_factor);
  Rope rope{.theta = *theta, .factors = {}, .rotary_dims = rotary_dims_of(reader, factor, head_dim)};
  if (scaled) {
    ScaledRope by_form = form->scale(*scaled, *theta, rope.rotary_dims);
    rope.factors = std::move(by_form.factors);
    rope.attention_factor = by_form.attention_factor;
    if (rope.rotary_dims != head_dim && rope.attention_factor != 1.0) {
      scaled->refuse("attention_factor", "is not 1, which is not supported where a part of a head is rotated");
    }
  }
  return over_the_head(reader, std::move(rope), head_dim);
}

bool reorders_heads(const ModelConfig& config, const Family& family) {
  return family.rotary_pairs != RotaryPairs::kHalves || config.rotated_dims() != config.head_dim;
}

}  // namespace tandem::model::decoder
