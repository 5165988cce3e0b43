// Runs the verbs of `tandem`, one function a verb. Each returns the exit code: 0, or that of the signal which ended it;
// and throws the errors that tandem/error.h names.
#pragma once

#include "config/run_mode.h"
#include "config/sft_config.h"
#include "config/train_config.h"
#include "config/verb_configs.h"
#include "mesh/launch/launch.h"

namespace tandem::run {

// Runs GRPO over one copy of the weights. When it throws, what was learnt up to the last finished rollout is saved.
int train(const config::TrainConfig& config, const config::RunMode& mode, const mesh::Launch& launch);

// Runs supervised training on conversations, or on prompts with responses: the trainer alone, with the likelihood as
// its loss.
int train_supervised(const config::SftConfig& config, const config::RunMode& mode, const mesh::Launch& launch);

// Writes completions of each prompt.
int generate(const config::GenerateConfig& config, const config::RunMode& mode);

// Answers requests, one JSON object a line of standard input, until it ends; the answers go to standard output, a line
// each (run/completion_requests.h).
int answer_requests(const config::EngineProcessConfig& config, const config::RunMode& mode);

// Writes log-probs and entropies of given sequences.
int score(const config::ScoreConfig& config, const config::RunMode& mode);

// Prints the mean reward and pass@k of a checkpoint on data sets.
int evaluate(const config::EvalConfig& config, const config::RunMode& mode);

// Rewrites a checkpoint as a plain Hugging Face directory.
int export_checkpoint(const config::ExportConfig& config, const config::RunMode& mode);

// Writes one HTML page of a run, or of up to kMaxPageRuns side by side. The runs are read as they are, and not changed.
int view(const config::ViewConfig& config, const config::RunMode& mode);

// Prints the memory plan of a training run; reads config.json of the checkpoint alone. Throws UserError when the plan
// does not fit, after it was printed.
int print_plan(const config::PlanConfig& config, const config::RunMode& mode);

}  // namespace tandem::run
