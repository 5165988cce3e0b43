// AdamW, its schedule, and how a batch is spread over memory.
#pragma once

#include <cstdint>
#include <string>

#include "base/options.h"

namespace tandem::config {

struct OptimizerOptions {
  double lr = 1e-6;
  double min_lr = 0.0;
  std::string lr_decay_style = "constant";
  int64_t lr_warmup_iters = 0;
  int64_t lr_decay_iters = 0;  // 0: the run's optimizer steps
  double weight_decay = 0.1;
  bool weight_decay_all = false;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.98;
  double adam_eps = 1e-8;
  double clip_grad = 1.0;
  double max_grad_norm_skip = 0.0;
  bool skip_zero_gradient = true;

  int64_t max_tokens_per_gpu = 8192;
  int64_t logprob_chunk_rows = 1024;
  std::string recompute_granularity = "auto";
  int64_t recompute_num_layers = 0;
  int64_t activation_bytes = 0;

  void visit(base::Options& options);
  // UserError when two flags contradict.
  void check() const;
  // What trainer::TrainerConfig::recompute_layers takes: -1 as activation_bytes asks, else a number of blocks.
  int64_t recompute_layers(int64_t num_layers) const;
};

}  // namespace tandem::config
