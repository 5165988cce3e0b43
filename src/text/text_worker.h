// The tokenizer and the chat template, in a Python child process (python/tandem_worker) over a socket pair:
// `tokenizers` and `jinja2` do the work, so ids and texts are the published ones. Every call has a deadline. A dead or
// hung child is replaced; the call that lost it throws WorkerError, later calls work. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/json.h"

namespace tandem::text {

// A call that lost its worker (died, deadline, protocol). The message says what happened to the process.
class WorkerError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct WorkerConfig {
  std::string python;            // interpreter
  std::string python_flag;       // the flag that named `python`, whose value is the user's fault; empty: ours
  std::string worker_directory;  // holds tandem_worker/
  double deadline_s = 60.0;      // of one call
  // Limits of the child; tandem_worker/sandbox.py sets them.
  int64_t memory_bytes = int64_t{4} << 30;  // what each process has for itself; code of libraries is not counted
  int64_t max_reply_bytes = int64_t{256} << 20;
  int64_t max_reply_values = int64_t{1} << 26;
  int64_t max_file_bytes = int64_t{1} << 30;  // of one file that it writes
  int64_t max_open_files = 256;
  int64_t max_processes = 256;  // it and all that it starts, threads included
  int num_forks = 0;            // of a warm parent: how many workers it is to fork at a time
  int64_t scratch_bytes =
      int64_t{256} << 20;  // of what it writes in all, where the kernel gives it a folder of its own
  // No network, few environment variables, files changed in `writable` alone (none: nowhere; nullopt: anywhere).
  bool sandboxed = true;
  bool network = false;  // sandboxed, but for internet sockets: of a worker that asks a service
  std::optional<std::vector<std::string>> writable = std::vector<std::string>{};
  // In the sandbox or not, the environment variables of kKeptVariables (text/child_environment.h) and these. A name
  // that ends in '*' stands for all that begin so. nullopt: as `sandboxed` says.
  std::optional<std::vector<std::string>> variables = std::nullopt;
};
// With the interpreter and the package beside the program (text/worker_place.h); EnvironmentError where one is missing.
WorkerConfig default_worker_config();

class TextWorker {
 public:
  // Starts the child and loads DIR/tokenizer.json, tokenizer_config.json (and chat_template.jinja where present).
  // UserError when the tokenizer is missing or malformed, EnvironmentError when Python or its packages are.
  TextWorker(const WorkerConfig& config, const std::string& model_directory);
  ~TextWorker();

  // add_special_tokens=False; tokens that the text spells out (<|im_end|>) are found. UserError for text that is not
  // UTF-8. What add_special_tokens=True writes before a text is text_prefix().
  std::vector<std::vector<int32_t>> encode(const std::vector<std::string>& texts);
  // Ids without a token (a model's vocabulary is often larger) decode to nothing, as in the published library.
  std::vector<std::string> decode(const std::vector<std::vector<int32_t>>& ids, bool skip_special_tokens);
  // Rendered text of each conversation. kwargs: add_generation_prompt, continue_final_message, enable_thinking, tools,
  // ... UserError when the template refuses (its message), per call.
  std::vector<std::string> apply_chat_template(const std::vector<base::Json>& conversations, const base::Json& kwargs);

  int64_t vocab_size() const;                     // largest id + 1, added tokens included
  const std::vector<std::string>& token_bytes();  // id -> bytes; special tokens too; empty: no token
  bool is_special(int32_t id) const;              // of no text: <|im_end|>, ...
  // The EOS that tokenizer_config.json names (eos_token), where it is in the vocabulary.
  std::optional<int32_t> eos_id() const;
  bool has_chat_template() const;
  const std::vector<int32_t>& text_prefix() const;  // ids that the post-processor writes before a text; empty: none
  int64_t restarts() const;                         // children replaced so far
  int64_t process_id() const;                       // of the child; -1 while there is none

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::text
