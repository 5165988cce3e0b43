// Everything that `tandem sft` can be told.
#pragma once

#include <cstdint>
#include <optional>

#include "base/options.h"
#include "config/checkpoint_options.h"
#include "config/data_options.h"
#include "config/eval_options.h"
#include "config/lora_options.h"
#include "config/model_options.h"
#include "config/optimizer_options.h"
#include "config/output_options.h"

namespace tandem::config {

struct SftConfig {
  // Where supervised training wants other defaults than `tandem train`.
  SftConfig();

  ModelOptions model;
  LoraOptions lora;
  DataOptions data;
  OptimizerOptions optimizer;
  EvalOptions eval;  // of these, the data sets
  OutputOptions output;
  CheckpointOptions checkpoints;
  int64_t global_batch_size = 0;
  std::optional<int64_t> num_rollout, num_epoch;
  bool rollout_shuffle = true;
  int64_t rollout_seed = 42;
  bool append_eos = true;
  bool calculate_per_token_loss = true;
  std::optional<int64_t> eval_interval;
  bool skip_eval_before_train = false;

  void visit(base::Options& options);

  // Flags that contradict each other: UserError with the remedy. Looks at no file.
  void check() const;

  // Optimizer steps of the run over so many samples.
  int64_t steps(int64_t num_samples) const;
  // Samples at the end of the last epoch that fill no step.
  int64_t left_out_by_epochs(int64_t num_samples) const;
};

}  // namespace tandem::config
