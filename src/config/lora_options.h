// Declares the options of LoRA: whether an adapter is trained instead of the weights, and which.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options/options.h"

namespace tandem::config {

constexpr double kDefaultLoraAlpha = 16.0;  // vime's and verl's default

struct LoraOptions {
  std::optional<int64_t> rank;               // unset: all weights are trained
  std::optional<double> alpha;               // unset: kDefaultLoraAlpha
  std::vector<std::string> target_modules;   // empty: "all-linear"
  bool use_rslora = false;                   // scale by alpha over the square root of the rank
  std::vector<std::string> modules_to_save;  // modules that are trained whole
  std::optional<double> dropout;             // unset: 0, or that of the adapter that is trained on

  void visit(options::Options& options);
  // UserError for a flag that needs --lora-rank.
  void check() const;
};

}  // namespace tandem::config
