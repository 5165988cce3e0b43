// Reads and writes the lines of `tandem engine`: one request on each line, and its answer.
//
//   {"id": 7, "prompts": ["text", [{"role": "user", "content": "text"}], {"tokens": [1, 2, 3]}],
//    "flags": ["--n-samples-per-prompt", "4", "--rollout-temperature", "0.7"]}
//   {"id": 7, "prompts": [{"text": "...", "tokens": [...], "completions": [{"text": "...", "finish_reason": "stop",
//    "tokens": [...], "log_probs": [...]}, ...]}, ...]}
//
// `id` is whatever the caller likes and comes back with the answer. `flags` are the sampling flags that `tandem
// generate` takes, and hold for this request alone. A request that is refused is answered with {"id": 7, "error":
// "why"}, and the next one is read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/data_options.h"
#include "config/rollout_options.h"
#include "data/lines.h"
#include "rl/sample.h"
#include "session/prompt_set.h"
#include "text/text_worker.h"

namespace tandem::run {

struct CompletionRequest {
  base::Json id;                             // null if there is none
  config::RolloutOptions sampling;           // flags of the process, overridden by those of the request
  std::vector<session::PromptLine> prompts;  // at least one, each of one token or more
};

// The limits of a request's members.
struct RequestLimits {
  int64_t num_samples = 0;      // total over all prompts
  int64_t vocab = 0;            // token ids are 0 to vocab - 1
  int64_t context_tokens = 0;   // bound on a prompt and its completion
  int64_t max_token_bytes = 0;  // bytes of the longest token: a text of more than context_tokens of these does not fit
};

// Returns the "id" of a line, also of one that is refused; null if there is none.
base::Json request_id(const base::Json& line);

// `place` is where the line stands. Throws UserError "prompts[2]: ..." for something that is no prompt, for a prompt
// that the chat template refuses, whose text is too long for any tokenizer to make it fit the context (it is not
// tokenized), or whose token ids the model does not have; "--rollout-top-p: ..." for flags; also for more completions
// than the limit, and for a member that requests do not have. Throws worker::WorkerError if the tokenizer process was
// lost.
CompletionRequest read_request(const base::Json& line, const data::Place& place, const config::RolloutOptions& sampling,
                               const config::DataOptions& data, const RequestLimits& limits, text::TextWorker& text);

// Returns a completion as JSON, for the answers of `tandem engine` and the lines of `tandem generate`: text,
// finish_reason ("stop" or "length"), tokens, log_probs (of the policy, at the sampling temperature) and, if top-p,
// top-k or min-p cut the distribution, sampled_log_probs.
base::Json completion_record(const rl::Sample& sample);

}  // namespace tandem::run
