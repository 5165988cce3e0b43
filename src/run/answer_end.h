// Whether sampling stops where the chat template ends an answer.
#pragma once

#include <string>

#include "config/data_options.h"
#include "config/rollout_options.h"
#include "model/config.h"
#include "text/text_worker.h"

namespace tandem::run {

// Why a completion will run on behind the end of its answer, and what helps: the special token with which the template
// ends answers is no EOS of the model and no stop token of the flags (a Base model with the template of its Instruct
// sibling). "" where sampling stops there, or the template ends answers with no special token.
std::string why_answers_run_on(const config::DataOptions& data, const config::RolloutOptions& rollout,
                               const model::ModelConfig& model, text::TextWorker& text);

// Says so, once a run.
void warn_where_answers_run_on(const config::DataOptions& data, const config::RolloutOptions& rollout,
                               const model::ModelConfig& model, text::TextWorker& text);

}  // namespace tandem::run
