// Maps the names of TRL, verl, AReaL and prime-rl to our flags. docs/COMING_FROM.md shows these rows, a test compares
// both, and the parser answers with them where a user types such a name (options::Options::known_elsewhere).
#pragma once

#include <span>
#include <string>

#include "options/options.h"

namespace tandem::config {

struct OtherName {
  const char* name;    // "learning_rate"; for verl the whole key, "data.train_files"
  const char* here;    // Markdown: our flags in backticks, with a value if it is always the same; or "none"
  const char* remark;  // Markdown: further remarks, or ""
};

std::span<const OtherName> names_of_trl();          // arguments of GRPOConfig, GRPOTrainer, ModelConfig and LoraConfig
std::span<const OtherName> names_of_preferences();  // arguments of TRL's DPOConfig and KTOConfig
std::span<const OtherName> names_of_sft();          // arguments of TRL that `tandem sft` answers in its own way
std::span<const OtherName> names_of_verl();         // keys of ppo_trainer.yaml
std::span<const OtherName> names_of_verl_sft();     // keys of verl that `tandem sft` answers in its own way
std::span<const OtherName> names_of_areal();        // keys of PPOActorConfig
std::span<const OtherName> names_of_prime_rl();     // keys of the trainer's configuration

// Completes "NAME: ..." in plain text: "TRL's learning_rate is --lr here".
std::string answer_of(const char* trainer, const OtherName& name);

// Declares these names, and the flags of slime, vime and Megatron that are refused. The options of the verb are there
// already: one that has --preference-loss, `tandem sft`, answers with the names of preferences and of supervised
// training first, and no other has those names.
// A name of a table is answered with its row also where it is one of a family that slime's rows refuse ("vllm-*").
void declare_other_trainers(options::Options& options);

}  // namespace tandem::config
