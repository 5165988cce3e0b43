#include "model/decoder/layer.h"

#include <algorithm>
#include <array>

namespace tandem::model::decoder {

Linear Layer::linear(const std::string& tensor, Cut cut, const std::string& bias) const {
  return {ops, stream, packed_name(tensor), cut, bias.empty() ? "" : packed_name(bias), adapter(tensor)};
}

Adapter Layer::adapter(const std::string& tensor) const {
  const auto windows = adapters.find(packed_name(tensor));
  if (windows == adapters.end()) return {};
  return {.scale = config.lora->scale(),
          .windows = windows->second,
          .dropout = &adapter_dropout,
          .dropout_stream = dropout_stream(index, tensor)};
}

uint64_t dropout_stream(int64_t layer, std::string_view tensor) {
  // The names keep their places for good: a run that is resumed drops the same elements.
  constexpr std::array<std::string_view, 4> kMatrices = {"qkv", "o", "gate_up", "down"};
  const auto matrix = static_cast<uint64_t>(std::ranges::find(kMatrices, tensor) - kMatrices.begin());
  return (static_cast<uint64_t>(layer) << 40) | (matrix << 32);
}

}  // namespace tandem::model::decoder
