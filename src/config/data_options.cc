#include "config/data_options.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/size.h"

namespace tandem::config {

void DataOptions::visit_prompt_data(options::Options& options, const std::string& help) {
  options.option(prompt_data, "prompt-data", "data", help).one_or_more().required().path().does_not_affect_results();
}

void DataOptions::visit_prompt_data_weights(options::Options& options) {
  options
      .option(
          prompt_data_weights, "prompt-data-weights", "data",
          "how often each file of --prompt-data is drawn from, one number a file, drawn from --rollout-seed; unset: "
          "an epoch takes every line of every file once")
      .greater_than(0.0)
      .at_most(1e9);
}

void DataOptions::check() const {
  TANDEM_USER_CHECK(prompt_data_weights.empty() || prompt_data_weights.size() == prompt_data.size(),
                    fmt::format("--prompt-data-weights: {} weights for {} files of --prompt-data; give one a file",
                                prompt_data_weights.size(), prompt_data.size()));
  TANDEM_USER_CHECK(
      prompt_data_weights.size() != 1,
      "--prompt-data-weights: one file of --prompt-data has no other to be weighed against; leave it out");
}

DataOptions DataOptions::for_file(const std::string& path) const {
  DataOptions own = *this;
  own.lines.path = path;
  return own;
}

void DataOptions::visit(options::Options& options) {
  const char* const group = "data";
  options.option(lines.input_key, "input-key", group,
                 "key of the prompt, a text or a list of messages; a.b: the key b of the object under a");
  options.option(lines.label_key, "label-key", group,
                 "key of the label that rewards compare with; a.b: the key b of the object under a. Built-in rewards "
                 "need a label in each line; Python functions get it with its JSON type, None where there is none");
  options.option(lines.metadata_key, "metadata-key", group,
                 "key of an object whose members Python rewards see beside the line's other keys");
  visit_rendering(options);
}

void DataOptions::visit_template(options::Options& options) {
  const char* const group = "data";
  options.option(lines.tool_key, "tool-key", group, "key of the list of tools that the chat template shows");
  options.option(system_prompt, "system-prompt", group,
                 "system message before conversations that have none; needs the chat template");
  options.option(apply_chat_template, "apply-chat-template", group,
                 "render prompts with the tokenizer's chat template; unset: message lists are rendered, texts are not");
  options.option(apply_chat_template_kwargs, "apply-chat-template-kwargs", group,
                 "JSON object with arguments for the chat template, such as {\"enable_thinking\": false}");
  options
      .option(
          add_special_tokens, "add-special-tokens", group,
          "begin plain texts with the special tokens that the tokenizer begins texts with, such as BOS, unless they "
          "begin so already; the chat template writes its own")
      // A checkpoint remembers the tokens themselves where there are any (session/prompt_set.h).
      .does_not_affect_results();
}

void DataOptions::visit_rendering(options::Options& options) {
  const char* const group = "data";
  visit_template(options);
  options
      .option(max_prompt_len, "rollout-max-prompt-len", group,
              "tokens of a prompt at most: longer prompts are left out and counted; 0: keep all")
      .at_least(0)
      .at_most(base::kMaxCount);
  options.option(
      lines.skip_bad_lines, "skip-bad-lines", group,
      "leave out, and count, lines that are malformed or lack a label that is needed, instead of refusing the file");
}

}  // namespace tandem::config
