// Where prompts come from and how they become tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/options.h"
#include "rl/prompts.h"

namespace tandem::config {

struct DataOptions {
  rl::PromptOptions lines;         // which file, and what of its lines; label_needed_by and rewards have no flag
  std::string system_prompt = "";  // of conversations that have no system message; empty: none
  std::optional<bool> apply_chat_template;  // unset: message lists yes, strings verbatim
  std::string apply_chat_template_kwargs = "{}";
  int64_t max_prompt_len = 0;                                // 0: no limit
  const char* max_prompt_flag = "--rollout-max-prompt-len";  // where it came from, for errors

  // All but the file, whose flag is the verb's.
  void visit(base::Options& options);
  void visit_rendering(base::Options& options);  // of these, how a conversation becomes tokens
  void visit_prompt_data(base::Options& options);
};

}  // namespace tandem::config
