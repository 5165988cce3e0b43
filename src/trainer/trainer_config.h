// Configures a trainer: plain data without torch. The options of a run hold these very structs, so that each default
// stands here alone. The options refuse values that are out of range; the trainer takes that for granted.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "rl/loss_config.h"
#include "rl/packing.h"
#include "trainer/schedule.h"

namespace tandem::trainer {

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.98;  // in [0, 1)
  double eps = 1e-8;                 // > 0
  double weight_decay = 0.1;
  bool weight_decay_all = false;  // false: only the tensors that decay by their layout
};

// Rules for a step's gradient before the optimizer sees it.
struct GradientConfig {
  double clip_grad = 1.0;           // 0: off
  double max_grad_norm_skip = 0.0;  // largest gradient norm of a step that is not skipped; 0: off
  bool skip_zero_gradient = true;   // whether a gradient of exactly 0 changes nothing but the step count
};

// The way in which samples are spread over forwards, and the memory that a forward may keep.
struct BatchConfig {
  int64_t max_tokens_per_gpu = 8192;   // packed tokens of one micro-batch (a longer sample gets its own), > 0
  int64_t micro_batches_multiple = 1;  // multiple to which a step's micro-batches are rounded up (rl/packing.h), > 0
  int64_t gradient_sum_group = 1;      // neighbouring micro-batches whose gradients are added up first, in [1, 64]
  int64_t logprob_chunk_rows = 1024;   // rows of logits alive at once, > 0
  int64_t activation_bytes = 0;        // budget for kept graphs when TrainerConfig::recompute_layers is -1; 0: no limit
  rl::Split split() const { return {.max_tokens = max_tokens_per_gpu, .multiple = micro_batches_multiple}; }
};

// The values of RouterConfig::balancing_type, by Megatron's names. The loss of "seq_aux_loss" is that of each sample by
// itself (trainer/balance_loss.h), "none" is none. The two others are over the tokens of a micro-batch and of the step;
// they are not computed, and their coefficient must be 0.
inline constexpr std::string_view kBalancingTypes[] = {"seq_aux_loss", "none", "aux_loss", "global_aux_loss"};

// The routers of a sparse model.
struct RouterConfig {
  std::string balancing_type = "seq_aux_loss";
  double aux_loss_coeff = 0.0;  // factor of the balance loss, >= 0; 0: there is none, and nothing is computed for it
  bool logs_layers = false;     // the metrics of the routers' load are reported for each layer too
  bool balances() const { return aux_loss_coeff != 0.0; }
};

struct TrainerConfig {
  AdamWConfig adamw;
  Schedule schedule;
  GradientConfig gradient;
  BatchConfig batch;
  rl::LossConfig loss;
  RouterConfig router = {};
  uint64_t seed = 0;             // of the loss's random choice of tokens, and of adapters' dropout
  double temperature = 1.0;      // divisor of the logits, > 0
  int64_t recompute_layers = 0;  // blocks whose graph is dropped and re-run; -1: by batch.activation_bytes
  // It is called between micro-batches. If it returns true, the step ends with StepAbandoned, and nothing has changed.
  // Null means never.
  std::function<bool()> abandon = {};
};

}  // namespace tandem::trainer
