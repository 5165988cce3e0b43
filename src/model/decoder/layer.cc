#include "model/decoder/layer.h"

namespace tandem::model::decoder {

Linear Layer::linear(const std::string& tensor, Cut cut, const std::string& bias) const {
  return {ops, stream, packed_name(tensor), cut, bias.empty() ? "" : packed_name(bias), adapter(tensor)};
}

Adapter Layer::adapter(const std::string& tensor) const {
  const auto windows = adapters.find(packed_name(tensor));
  if (windows == adapters.end()) return {};
  return {.scale = config.lora->scale(), .windows = windows->second};
}

}  // namespace tandem::model::decoder
