// Declares the options of `tandem bench`: which model is measured, and how much of it. Values that are not given depend
// on the device: a GPU gets a real model's shape and a CPU one that ends within a minute.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/model_options.h"
#include "config/optimizer_options.h"
#include "options/options.h"
#include "rl/sample.h"
#include "rollout/batch_limits.h"

namespace tandem::config {

// Shapes that need no file; bench/shapes has their numbers.
inline constexpr std::array<std::string_view, 8> kBenchShapes = {
    "tiny", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "moe-tiny", "moe-0.5b", "qwen3-30b-a3b"};
inline constexpr std::array<std::string_view, 9> kBenchParts = {"ceilings", "decode",    "prefill", "mixed",    "tail",
                                                                "train",    "optimizer", "step",    "exactness"};

struct BenchConfig {
  ModelOptions model;  // hf_checkpoint "": the shape
  std::string shape;   // "": the device's default
  std::vector<std::string> what = {"ceilings", "decode", "prefill", "train", "optimizer", "step"};

  std::vector<int64_t> sequences;  // batch sizes of decoding; empty: the device's default
  std::optional<int64_t> prompt_len, response_len;
  int64_t n_samples_per_prompt = 1;
  double temperature = 1.0;
  std::optional<int64_t> max_batch_tokens;
  int64_t max_draft_tokens = rollout::BatchLimits().max_draft_tokens;

  std::vector<int64_t> samples;  // prompts of a training step, and completions of each; empty: the device's default
  int64_t train_tokens = 0;      // tokens of a micro-batch; 0: all of the step's
  OptimizerOptions optimizer;    // only its memory

  std::string json;

  void visit(options::Options& options);
  // Throws UserError when two flags contradict.
  void check() const;
  // Gives what nobody gave: less where the host itself computes, and as many tokens a forward as suit the device.
  void fill_in();
  bool measures(std::string_view part) const;
  // Returns whether anything but exactness is measured.
  bool measures_speed() const;
  bool needs_weights() const;
};

}  // namespace tandem::config
