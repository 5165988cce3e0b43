#include "bench/shapes.h"

#include <array>
#include <optional>

#include "base/check.h"

namespace tandem::bench {

namespace {

struct Shape {
  std::string_view name;
  int64_t hidden, num_layers, num_heads, num_kv_heads, head_dim, mlp, vocab;
  bool tied_embeddings;
  std::optional<model::ExpertsConfig> experts = {};  // of a sparse model, which has no `mlp`
};

constexpr model::ExpertsConfig experts(int64_t count, int64_t chosen, int64_t width) {
  return {.count = count, .chosen = chosen, .width = width, .normalises = true};
}

constexpr auto kShapes = std::to_array<Shape>({
    // The tiny shape is that of bench/tiny_model.py: 3.2 M parameters.
    {"tiny", 256, 4, 4, 2, 64, 768, 96, true},
    {"qwen3-0.6b", 1024, 28, 16, 8, 128, 3072, 151936, true},
    {"qwen3-1.7b", 2048, 28, 16, 8, 128, 6144, 151936, true},
    {"qwen3-4b", 2560, 36, 32, 8, 128, 9728, 151936, true},
    {"qwen3-8b", 4096, 36, 32, 8, 128, 12288, 151936, false},
    // Sparse ones. Those of bench/tiny_model.py have 10.2 M and 0.65 G parameters.
    {"moe-tiny", 256, 4, 4, 2, 64, 0, 96, true, experts(8, 2, 384)},
    {"moe-0.5b", 1024, 12, 16, 8, 64, 0, 151936, true, experts(32, 4, 384)},
    {"qwen3-30b-a3b", 2048, 48, 32, 4, 128, 0, 151936, false, experts(128, 8, 768)},
});

}  // namespace

model::ModelConfig bench_shape(std::string_view name) {
  for (const Shape& shape : kShapes) {
    if (shape.name != name) continue;
    model::ModelConfig config;
    config.architecture = shape.experts ? "Qwen3MoeForCausalLM" : "Qwen3ForCausalLM";
    config.hidden = shape.hidden;
    config.num_layers = shape.num_layers;
    config.num_heads = shape.num_heads;
    config.num_kv_heads = shape.num_kv_heads;
    config.head_dim = shape.head_dim;
    config.mlp = shape.mlp;
    config.experts = shape.experts;
    config.vocab = shape.vocab;
    config.max_positions = 40960;
    config.attention.front().rope_theta = 1e6;
    config.tied_embeddings = shape.tied_embeddings;
    return config;
  }
  TANDEM_CHECK(false, "no shape named", std::string(name));
}

}  // namespace tandem::bench
