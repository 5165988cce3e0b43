// Reads the answers that the lines of a prompt file give, for distillation that learns from them too
// (--opd-on-policy-share). An answer becomes tokens as `tandem sft` makes them: as the chat template renders it after
// the prompt, up to the token that ends it, or as text with an EOS after it. An answer that is a list of token ids, as
// `tandem generate` writes them, is taken as it is.
#pragma once

#include <cstdint>
#include <string>

#include "config/data_options.h"
#include "model/config.h"
#include "session/prompt_set.h"
#include "text/text_worker.h"

namespace tandem::session {

struct GivenAnswerOptions {
  // The key of a line's answer. With this default a line may have "completion" instead, unless the file's answers are
  // lists of token ids.
  std::string key = "response";
  int64_t max_tokens = 0;           // of an answer
  int64_t max_context_tokens = 0;   // of prompt and answer; 0: the model's
  bool skip_special_tokens = true;  // in the answers' texts
};

// Sets the answer of each prompt. `data` are the options that the prompts were loaded with. Throws UserError with
// FILE:LINE for a line that has no answer, one that is too long, one whose prompt is rendered otherwise where an answer
// follows, or one with a token id that the model does not have.
void read_given_answers(const config::DataOptions& data, const GivenAnswerOptions& options, text::TextWorker& text,
                        const model::ModelConfig& model, PromptSet& prompts);

}  // namespace tandem::session
