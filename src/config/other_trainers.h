// What TRL and verl call what a flag of ours does. docs/COMING_FROM.md shows these rows, a test compares both, and the
// parser answers with them where somebody types such a name (base::Options::known_elsewhere).
#pragma once

#include <span>
#include <string>

#include "base/options.h"

namespace tandem::config {

struct OtherName {
  const char* name;    // "learning_rate"; of verl the whole key, "data.train_files"
  const char* here;    // Markdown: our flags in backticks, with a value where it is always the same; or "none"
  const char* remark;  // Markdown: what else to know, or ""
};

std::span<const OtherName> names_of_trl();   // arguments of GRPOConfig, GRPOTrainer, ModelConfig and LoraConfig
std::span<const OtherName> names_of_verl();  // keys of ppo_trainer.yaml

// Completes "NAME: ..." in plain text: "TRL's learning_rate is --lr here".
std::string answer_of(const char* trainer, const OtherName& name);

// Declares these names, and the flags of slime, vime and Megatron that are refused.
void declare_other_trainers(base::Options& options);

}  // namespace tandem::config
