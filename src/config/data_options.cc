#include "config/data_options.h"

#include "base/size.h"

namespace tandem::config {

void DataOptions::visit_prompt_data(base::Options& options) {
  options
      .option(lines.path, "prompt-data", "data",
              "JSONL or Parquet file, one prompt a line or row; FILE@[a:b] takes rows a to b of it")
      .required()
      .path()
      .does_not_affect_results();
}

void DataOptions::visit(base::Options& options) {
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

void DataOptions::visit_rendering(base::Options& options) {
  const char* const group = "data";
  options.option(lines.tool_key, "tool-key", group, "key of the list of tools that the chat template shows");
  options.option(system_prompt, "system-prompt", group,
                 "system message before conversations that have none; needs the chat template");
  options.option(apply_chat_template, "apply-chat-template", group,
                 "render prompts with the tokenizer's chat template; unset: message lists are rendered, texts are not");
  options.option(apply_chat_template_kwargs, "apply-chat-template-kwargs", group,
                 "JSON object with arguments for the chat template, such as {\"enable_thinking\": false}");
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
