// model/config: an accepted config.json (and after a NUL byte, a generation_config.json) gives a model whose numbers
// lie in their ranges, and whose size is a number.
#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/log.h"
#include "tests/fuzz/json_mutator.h"

using namespace tandem::fuzz;
using tandem::model::ModelConfig;

namespace {

void require_ids_in_range(const ModelConfig& config) {
  auto ids = config.eos_token_ids;
  for (const int32_t id : ids) require(id >= 0 && id < config.vocab, "an EOS id is in the vocabulary");
  std::sort(ids.begin(), ids.end());
  require(std::adjacent_find(ids.begin(), ids.end()) == ids.end(), "no EOS id is held twice");
  require(config.pad_token_id >= -1 && config.pad_token_id < config.vocab, "the padding id is in the vocabulary");
}

void require_model(const ModelConfig& config) {
  require(config.hidden > 0 && config.mlp > 0 && config.vocab > 0 && config.max_positions > 0, "widths are positive");
  require(config.num_kv_heads > 0 && config.num_heads % config.num_kv_heads == 0, "groups of heads are whole");
  require(config.head_dim > 0 && config.head_dim % 2 == 0, "rotation has pairs");
  require(!config.attention.empty(), "each layer has an attention");
  for (const tandem::model::LayerAttention& layer : config.attention) {
    require(std::isfinite(layer.rope_theta) && layer.rope_theta >= 1.0, "rope_theta is usable");
    require(layer.rope_factors.empty() || static_cast<int64_t>(layer.rope_factors.size()) == config.head_dim / 2,
            "a factor for each frequency, or none");
    for (const float factor : layer.rope_factors) require(factor >= 0.0F && factor <= 1.0F, "no frequency is raised");
    require(std::isfinite(layer.query_scale) && layer.query_scale > 0.0, "query_scale is usable");
  }
  require(config.rms_norm_eps > 0.0 && config.rms_norm_eps < 1.0, "rms_norm_eps is usable");
  require(std::isfinite(config.initializer_range), "initializer_range is usable");
  require_ids_in_range(config);
  // The table of a deep model takes longer than all the rest of an execution.
  constexpr int64_t kCheckedLayers = 6;
  if (config.num_layers > kCheckedLayers) return;
  const auto num_bytes = static_cast<long double>(config.num_parameters()) * dtype_bytes(config.dtype);
  require(num_bytes > 0 && num_bytes < 9e18L, "the model's bytes fit 64 bits");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::base::set_log_level(tandem::base::LogLevel::kError);
  const std::string_view text = text_of(data, size);
  const size_t separator = text.find('\0');
  std::optional<ModelConfig> config;
  accepts([&] { config = tandem::model::parse_model_config(std::string(text.substr(0, separator)), "config.json"); },
          [](std::string_view message) { require_message(message, "config.json"); });
  if (!config) return 0;
  require_model(*config);
  if (separator == std::string_view::npos) return 0;
  const std::string generation(text.substr(separator + 1));
  if (accepts([&] { tandem::model::add_generation_config(generation, "generation_config.json", *config); },
              [](std::string_view message) { require_message(message, "generation_config.json"); })) {
    require_ids_in_range(*config);
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return mutate_json(data, size, max_size, seed);
}
