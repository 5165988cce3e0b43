// Where prompts come from and how they become tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/options.h"

namespace tandem::config {

struct DataOptions {
  std::string prompt_data;
  std::string input_key = "prompt";
  std::string label_key = "label";
  std::string metadata_key = "metadata";
  std::string tool_key = "tools";
  std::optional<bool> apply_chat_template;  // unset: message lists yes, strings verbatim
  std::string apply_chat_template_kwargs = "{}";
  int64_t max_prompt_len = 0;                                // 0: no limit
  const char* max_prompt_flag = "--rollout-max-prompt-len";  // where it came from, for errors
  bool skip_bad_lines = false;
  // No flags: who compares completions with labels (rl::PromptOptions::label_needed_by), and which flag names their
  // key.
  std::string label_needed_by, label_flag = "--label-key";

  // All but the file, whose flag is the verb's.
  void visit(base::Options& options);
  void visit_rendering(base::Options& options);  // of these, how a conversation becomes tokens
  void visit_prompt_data(base::Options& options);
};

}  // namespace tandem::config
