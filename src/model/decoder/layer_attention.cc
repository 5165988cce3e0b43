#include "model/decoder/layer_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace tandem::model::decoder {
namespace {

using base::Json;

// Returns for each layer whether it rotates queries and keys, as transformers' SmolLM3Config reads it.
std::vector<bool> read_rotated(const ConfigReader& reader, const Family& family, int64_t num_layers) {
  std::vector<bool> rotated(static_cast<size_t>(num_layers), true);
  if (family.unrotated == UnrotatedLayers::kNone) return rotated;
  constexpr const char *kList = "no_rope_layers", *kInterval = "no_rope_layer_interval";
  constexpr int64_t kDefaultInterval = 4;
  const Json* list = reader.find(kList);
  if (list == nullptr) {
    const int64_t interval =
        reader.has(kInterval) ? reader.required_int(kInterval, 1, int64_t{1} << 20) : kDefaultInterval;
    for (int64_t layer = interval - 1; layer < num_layers; layer += interval)
      rotated[static_cast<size_t>(layer)] = false;
    return rotated;
  }
  const bool is_list = list->is_array() && static_cast<int64_t>(list->size()) == num_layers &&
                       std::ranges::all_of(*list, [](const Json& entry) { return entry == 0 || entry == 1; });
  if (!is_list) {
    reader.refuse(kList, fmt::format("must be a list of {} numbers, 1 for a layer that rotates and 0 for one that "
                                     "does not",
                                     num_layers));
  }
  for (size_t layer = 0; layer < rotated.size(); ++layer) rotated[layer] = (*list)[layer] == 1;
  return rotated;
}

// Returns which layers layer_types calls sliding, or what the family means without it.
std::vector<bool> read_windowed(const ConfigReader& reader, const Family& family, int64_t num_layers, bool has_window) {
  constexpr const char *kTypes = "layer_types", *kPattern = "sliding_window_pattern", *kFull = "full_attention",
                       *kSliding = "sliding_attention";
  std::vector<bool> windowed(static_cast<size_t>(num_layers), family.windowed != WindowedLayers::kNone && has_window);
  const Json* types = reader.find(kTypes);
  if (types == nullptr) {
    const int64_t interval = reader.has(kPattern) && family.reads_window_pattern
                                 ? reader.required_int(kPattern, 1, int64_t{1} << 20)
                                 : family.unwindowed_interval;
    if (interval > 0) {
      for (int64_t layer = interval - 1; layer < num_layers; layer += interval)
        windowed[static_cast<size_t>(layer)] = false;
    }
    return windowed;
  }
  const auto is_known = [&](const Json& type) {
    if (family.windowed == WindowedLayers::kTyped) return type == kFull || (type == kSliding && has_window);
    return type == (windowed.front() ? kSliding : kFull);
  };
  if (!types->is_array() || static_cast<int64_t>(types->size()) != num_layers ||
      !std::ranges::all_of(*types, is_known)) {
    const bool may_slide = family.windowed != WindowedLayers::kNone && has_window;
    const std::string known = family.windowed == WindowedLayers::kTyped && may_slide
                                  ? fmt::format("\"{}\" or \"{}\"", kFull, kSliding)
                                  : fmt::format("\"{}\"", may_slide ? kSliding : kFull);
    reader.refuse(
        kTypes, fmt::format("must be {} for each of the {} layers; other kinds are not supported", known, num_layers));
  }
  for (size_t layer = 0; layer < windowed.size(); ++layer) windowed[layer] = (*types)[layer] == kSliding;
  return windowed;
}

// The layers with a window, and how many tokens one sees there. A window that holds every sequence of the model is
// none, but its layers keep their own rotary embedding.
struct Windows {
  std::vector<bool> is_windowed;
  int64_t window = 0;
};
Windows read_windows(const ConfigReader& reader, const Family& family, const ModelConfig& config) {
  constexpr const char* kWindow = "sliding_window";
  int64_t window = 0;
  if (family.windowed != WindowedLayers::kNone) {
    if (family.needs_window_key && !reader.object().contains(kWindow))
      reader.refuse(kWindow, "is missing; add it as the model's publisher has it, or null for none");
    if (reader.has(kWindow)) window = reader.required_int(kWindow, 1, std::numeric_limits<int32_t>::max());
  }
  return {.is_windowed = read_windowed(reader, family, config.num_layers, window > 0),
          .window = window < config.max_positions ? window : 0};
}

// Returns what queries are multiplied by, so that attention, which divides by the root of K, divides by that of
// query_pre_attn_scalar.
double read_query_scale(const ConfigReader& reader, const Family& family, const ModelConfig& config) {
  if (!family.reads_query_scalar) return 1.0;
  constexpr const char* kScalar = "query_pre_attn_scalar";
  constexpr double kDefault = 256.0;
  const double scalar = reader.number_or(kScalar, kDefault);
  if (!(scalar >= 1e-3 && scalar <= 1e6))
    reader.refuse(kScalar, fmt::format("is {}; it must lie between 0.001 and 1000000", scalar));
  return std::sqrt(static_cast<double>(config.head_dim) / scalar);
}

}  // namespace

std::vector<LayerAttention> read_attention(const ConfigReader& reader, const Family& family, const ModelConfig& config,
                                           const Rope& rope) {
  const double query_scale = read_query_scale(reader, family, config);
  // Scaling queries and keys by a factor is scaling queries by its square.
  const auto rotating = [&](const Rope& of_layer) -> LayerAttention {
    return {.rope_theta = of_layer.theta,
            .rope_factors = of_layer.factors,
            .query_scale = query_scale * of_layer.attention_factor * of_layer.attention_factor};
  };
  const LayerAttention full = rotating(rope), windowed = rotating(read_window_rope(reader, family, rope));
  // A frequency of 0 turns nothing.
  const LayerAttention unrotated{.rope_factors = std::vector<float>(static_cast<size_t>(config.head_dim / 2), 0.0F),
                                 .query_scale = query_scale};
  const std::vector<bool> rotated = read_rotated(reader, family, config.num_layers);
  const Windows windows = read_windows(reader, family, config);
  std::vector<LayerAttention> layers;
  for (size_t layer = 0; layer < rotated.size(); ++layer) {
    layers.push_back(!rotated[layer] ? unrotated : windows.is_windowed[layer] ? windowed : full);
    if (windows.is_windowed[layer]) layers.back().window = windows.window;
  }
  const bool are_alike = std::ranges::all_of(layers, [&](const LayerAttention& one) { return one == layers.front(); });
  if (are_alike) layers.resize(1);
  return layers;
}

}  // namespace tandem::model::decoder
