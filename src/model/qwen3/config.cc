// Qwen3's keys of config.json.
#include "model/decoder/config.h"

#include "model/qwen3/qwen3.h"

namespace tandem::model::qwen3 {

ModelConfig parse(const ConfigReader& reader) {
  ModelConfig config = decoder::read_decoder(reader);
  config.head_dim = decoder::read_head_dim(reader);
  config.rope_theta = decoder::read_rope_theta(reader);
  decoder::refuse_true(reader, "attention_bias", "biases are not supported");
  decoder::refuse_true(reader, "use_sliding_window", "sliding-window attention is not supported");
  return config;
}

}  // namespace tandem::model::qwen3
