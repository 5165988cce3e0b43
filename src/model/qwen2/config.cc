// Qwen2's keys of config.json.
#include "model/decoder/config.h"

#include "model/qwen2/qwen2.h"

namespace tandem::model::qwen2 {

ModelConfig parse(const ConfigReader& reader) {
  ModelConfig config = decoder::read_decoder(reader);
  config.head_dim = decoder::read_head_dim_or_quotient(reader, config);
  config.rope_theta = decoder::read_rope_theta(reader);
  if (!reader.bool_or("attention_bias", true)) {
    reader.refuse("attention_bias", "is false; Qwen2's q, k and v have biases: remove it, or correct architectures");
  }
  // The published folders have a number for sliding_window, which counts only where this says true.
  decoder::refuse_true(reader, "use_sliding_window", "sliding-window attention is not supported");
  decoder::refuse_true(reader, "use_mrope", "rotary embeddings of several position axes are not supported");
  return config;
}

}  // namespace tandem::model::qwen2
