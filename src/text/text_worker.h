// The tokenizer and the chat template, in a Python child process (python/tandem_worker) over a socket pair:
// `tokenizers` and `jinja2` do the work, so ids and texts are the published ones. Every call has a deadline. A dead or
// hung child is replaced; the call that lost it throws WorkerError, later calls work. One thread at a time may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "worker/worker_config.h"

namespace tandem::text {

// The most UTF-8 bytes of a text that becomes tokens. Larger ones take more time and memory than a tokenizer process
// has: 8 MiB take 20 s and 2.5 GiB, and 20 MB end it.
constexpr size_t kMaxTextBytes = size_t{8} << 20;

class TextWorker {
 public:
  // Starts the child and loads DIR/tokenizer.json, tokenizer_config.json (and chat_template.jinja where present).
  // UserError when the tokenizer is missing or malformed, EnvironmentError when Python or its packages are.
  TextWorker(const worker::WorkerConfig& config, const std::string& model_directory);
  ~TextWorker();

  // Encodes with add_special_tokens=False; tokens that the text spells out (<|im_end|>) are found. UserError for text
  // that is not UTF-8 or has more than kMaxTextBytes. text_prefix() is what add_special_tokens=True writes before a
  // text.
  std::vector<std::vector<int32_t>> encode(const std::vector<std::string>& texts);
  // Decodes each list of ids. Ids without a token (a model's vocabulary is often larger) decode to nothing, as in the
  // published library.
  std::vector<std::string> decode(const std::vector<std::vector<int32_t>>& ids, bool skip_special_tokens);
  // Returns the rendered text of each conversation. kwargs: add_generation_prompt, continue_final_message,
  // enable_thinking, tools, ... UserError when the template refuses (its message), per call.
  std::vector<std::string> apply_chat_template(const std::vector<base::Json>& conversations, const base::Json& kwargs);
  // Returns whether the template could render any conversation with these arguments: false if there is none, it is no
  // template, or the arguments contradict each other.
  bool takes_template_arguments(const base::Json& kwargs);

  int64_t vocab_size() const;                     // largest id + 1, added tokens included
  const std::vector<std::string>& token_bytes();  // id -> bytes; special tokens too; empty: no token
  bool is_special(int32_t id) const;              // <|im_end|>, ..., which stand for no text
  // Returns the EOS that tokenizer_config.json names (eos_token), where it is in the vocabulary.
  std::optional<int32_t> eos_id() const;
  bool has_chat_template() const;
  const std::vector<int32_t>& text_prefix() const;  // ids that the post-processor writes before a text; empty: none
  int64_t restarts() const;                         // children replaced so far
  int64_t process_id() const;                       // the child's; -1 while there is none

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::text
