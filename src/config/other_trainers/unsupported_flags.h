// Flags that users of vime, slime and Megatron type and that Tandem knows but does not have, with the reason. A flag
// whose given value asks for what Tandem does anyway (--pipeline-model-parallel-size 1) is accepted and does nothing.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tandem::config {

struct UnsupportedFlag {
  const char* name;           // without "--"; a trailing '*' stands for any ending
  const char* harmless;       // accepted values, separated by '|'; "" a switch given without value; null: none
  const char* reason;         // completes "--name: ..." and says what to do instead
  bool of_a_new_run = false;  // harmless in a new run alone: with --load it asks for something that Tandem lacks
  // Names flags that mean something else without it, separated by spaces: the remaining command leaves them out too.
  const char* companions = "";
};

std::span<const UnsupportedFlag> unsupported_flags();

// Returns the row for a flag name (without "--"), or nullptr.
const UnsupportedFlag* find_unsupported_flag(const std::string& name);

// Returns whether `value` (nullopt: the flag has none) asks for nothing that Tandem lacks.
bool is_harmless(const UnsupportedFlag& flag, const std::optional<std::string>& value);

// Drops flags that Tandem knows but does not have if their value asks for what it does anyway
// (--pipeline-model-parallel-size 1).
std::vector<std::string> without_harmless_flags(const std::vector<std::string>& arguments);

}  // namespace tandem::config
