// Declares the options that name the prompts and say how they become tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/prompts.h"
#include "options/options.h"

namespace tandem::config {

struct DataOptions {
  std::vector<std::string> prompt_data;     // one file or more, each PATH or PATH@[a:b]
  std::vector<double> prompt_data_weights;  // one for each file of prompt_data; empty: the files follow each other
  data::PromptOptions lines;                // file and keys of its lines; label_needed_by and rewards have no flag
  std::string system_prompt = "";           // for conversations without a system message; empty: none
  std::optional<bool> apply_chat_template;  // unset: message lists yes, strings verbatim
  std::string apply_chat_template_kwargs = "{}";
  bool add_special_tokens = true;           // put the post-processor's tokens, such as BOS, before plain texts
  bool allow_unrendered_reasoning = false;  // `tandem sft`: trained reasoning_content may be absent from the text
  int64_t max_prompt_len = 0;               // tokens; 0: no limit
  const char* max_prompt_flag = "--rollout-max-prompt-len";  // the flag's name, for errors

  // Declares all but the files, whose flags are the verb's.
  void visit(options::Options& options);
  void visit_rendering(options::Options& options);  // flags that turn a conversation into tokens, or leave it out
  void visit_template(options::Options& options);   // flags that turn a conversation into tokens
  void visit_prompt_data(options::Options& options, const std::string& help);
  void visit_prompt_data_weights(options::Options& options);

  // Throws UserError unless there are as many weights as files; a single file needs none.
  void check() const;
  // Returns these options for one of the files of prompt_data.
  DataOptions for_file(const std::string& path) const;
};

}  // namespace tandem::config
