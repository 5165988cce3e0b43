// Lines that `tandem engine` reads and writes: a request a line, and its answer.
//
//   {"id": 7, "prompts": ["text", [{"role": "user", "content": "text"}], {"tokens": [1, 2, 3]}],
//    "flags": ["--n-samples-per-prompt", "4", "--rollout-temperature", "0.7"]}
//   {"id": 7, "prompts": [{"text": "...", "tokens": [...], "completions": [{"text": "...", "finish_reason": "stop",
//    "tokens": [...], "log_probs": [...]}, ...]}, ...]}
//
// `id` is whatever the caller likes and comes back with the answer. `flags` are those of sampling as `tandem generate`
// takes them, and hold for this request alone. A request that is refused is answered with {"id": 7, "error": "why"},
// and the next one is read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/data_options.h"
#include "config/rollout_options.h"
#include "rl/data_lines.h"
#include "rl/sample.h"
#include "session/prompt_set.h"
#include "text/text_worker.h"

namespace tandem::run {

struct CompletionRequest {
  base::Json id;                             // null where there is none
  config::RolloutOptions sampling;           // those of the process, with the request's flags in their place
  std::vector<session::PromptLine> prompts;  // at least one, each of one token or more
};

// The members that a request may have.
struct RequestLimits {
  int64_t num_samples = 0;      // of all prompts together
  int64_t vocab = 0;            // token ids are 0 to vocab - 1
  int64_t context_tokens = 0;   // of a prompt and its completion
  int64_t max_token_bytes = 0;  // of the longest token: a text of more than context_tokens of these does not fit
};

// The "id" of a line, or null: also of a line that is refused.
base::Json request_id(const base::Json& line);

// `place` is where the line stands. UserError "prompts[2]: ..." for a prompt that is none, that the chat template
// refuses, whose text is too long for any tokenizer to make it fit the context (it is not tokenized), or whose token
// ids the model has not; "--rollout-top-p: ..." for flags; for more completions than the limit; and for a member that
// requests do not have. worker::WorkerError: the tokenizer process was lost.
CompletionRequest read_request(const base::Json& line, const rl::Place& place, const config::RolloutOptions& sampling,
                               const config::DataOptions& data, const RequestLimits& limits, text::TextWorker& text);

// A completion as JSON shows it, in the answers of `tandem engine` and the lines of `tandem generate`: text,
// finish_reason ("stop" or "length"), tokens, log_probs (of the policy, at the sampling temperature) and, where top-p,
// top-k or min-p cut the distribution, sampled_log_probs.
base::Json completion_record(const rl::Sample& sample);

}  // namespace tandem::run
