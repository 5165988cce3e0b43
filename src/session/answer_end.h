// Checks whether sampling stops where the chat template ends an answer.
#pragma once

#include <string>

#include "config/data_options.h"
#include "config/rollout_options.h"
#include "model/config.h"
#include "text/text_worker.h"

namespace tandem::session {

// Returns why a completion will continue after the end of its answer, and what helps. This happens when the special
// token with which the template ends answers is neither an EOS token of the model nor a stop token of the flags (a Base
// model with the template of its Instruct sibling). Returns "" if sampling stops there, or if the template ends answers
// with no special token.
std::string why_answers_run_on(const config::DataOptions& data, const config::RolloutOptions& rollout,
                               const model::ModelConfig& model, text::TextWorker& text);

// Logs that as a warning, once a run.
void warn_where_answers_run_on(const config::DataOptions& data, const config::RolloutOptions& rollout,
                               const model::ModelConfig& model, text::TextWorker& text);

}  // namespace tandem::session
