// The trainer: packed batches through the model's own layer loop, gradients in float32, AdamW on float32 masters, and
// the result written into the weight store. One call is one optimizer step.
//
// Contract of a step: the gradient is exactly that of the loss over all its samples, whatever the token budget splits
// them into; it depends on sample order and budget, never on arrival order. A forward here gives bit for bit the
// engine's log-probs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/model.h"
#include "rl/loss_config.h"
#include "rl/sample.h"
#include "trainer/optimizer_offload.h"
#include "weights/store.h"

namespace tandem::trainer {

struct TrainerConfig {
  int64_t max_tokens_per_gpu = 8192;  // packed tokens of one micro-batch (a longer sample gets its own)
  int64_t logprob_chunk_rows = 1024;  // rows of logits alive at once
  int64_t recompute_layers = 0;       // blocks whose graph is dropped and re-run; -1: as activation_bytes asks
  int64_t activation_bytes = 0;       // budget for kept graphs when recompute_layers is -1; 0: no limit
  double temperature = 1.0;           // that logits are divided by, > 0
  double lr = 1e-6, min_lr = 0.0;
  std::string lr_decay_style = "constant";  // constant, linear, cosine
  int64_t lr_warmup_steps = 0, lr_decay_steps = 0;
  double weight_decay = 0.1;
  bool weight_decay_all = false;  // norms too
  double adam_beta1 = 0.9, adam_beta2 = 0.98, adam_eps = 1e-8;
  double clip_grad = 1.0;           // 0: off
  double max_grad_norm_skip = 0.0;  // a step with a larger gradient norm is skipped; 0: off
  bool skip_zero_gradient = true;   // a gradient of exactly 0 changes nothing but the step count
  rl::LossConfig loss;
  // Asked between micro-batches; true ends the step with StepAbandoned, and nothing has changed. Null: never.
  std::function<bool()> abandon;
};

// How far the optimizer is: plain data, saved with its tensors.
struct OptimizerProgress {
  int64_t updates = 0;  // of the moments: AdamW's bias correction
  int64_t steps = 0;    // updates, skipped steps and those without a gradient: the learning rate's schedule
  bool operator==(const OptimizerProgress&) const = default;
};

class StepAbandoned : public std::runtime_error {
 public:
  StepAbandoned() : std::runtime_error("the optimizer step was abandoned") {}
};

using Metrics = std::map<std::string, double>;

class Trainer {
 public:
  virtual ~Trainer() = default;

  // One optimizer step over `samples` (in sample order). Returns train/* metrics without prefix: those of rl::LossSums,
  // and grad_norm (before clipping), grad_clipped, zero_gradient and step_skipped (1 or 0), lr, and with
  // loss.get_mismatch_metrics recomputed_logprob_abs_diff: the same difference with log-probs from a pass without
  // gradients (at a rollout's first optimizer step, the old ones). The store's version is bumped. A step whose loss or
  // gradient is not finite, or whose gradient is above max_grad_norm_skip, is skipped: weights, masters, moments and
  // version keep their bits. So they do, with skip_zero_gradient, where the gradient is exactly 0: nothing went wrong
  // there, and step_skipped is 0.
  // EnvironmentError: the update failed and the step is lost, as trainer/adamw.h says.
  virtual Metrics step(const std::vector<const rl::Sample*>& samples) = 0;

  // Frees what only training needs, the gradients: between train phases the memory is the engine's. The next step()
  // takes it again.
  virtual void end_phase() = 0;

  // Log-probs (and entropy where wanted) of each sample's completion under `model`, no gradient: reference pass,
  // `score`, mismatch metrics. [N] per sample, in the order of `samples`; masks do not matter.
  struct Scores {
    std::vector<std::vector<float>> logprobs, entropy;
  };
  virtual Scores score(const model::Model& model, const std::vector<const rl::Sample*>& samples) = 0;

  virtual OptimizerProgress progress() const = 0;
  // State that a checkpoint holds, by name: "master.<packed>", "exp_avg.<packed>", "exp_avg_sq.<packed>" (float32,
  // live for as long as the trainer: in a float32 store the masters are the store's own tensors). With an offload,
  // masters beside the store and moments lie on the host: the same names, shapes and bits, so that what one kind of
  // trainer saved the other restores. EnvironmentError: the host has too little memory, or an update failed half way.
  virtual std::map<std::string, at::Tensor> state() const = 0;
  // The last call of a restore, after state() was filled: also rounds the masters into the store.
  virtual void restore(const OptimizerProgress& progress) = 0;
  // Gradient of a packed tensor after the last backward, scaled and before clipping, until end_phase(); for tests.
  virtual at::Tensor gradient(const std::string& packed_name) const = 0;
};

// Store and model are borrowed. The trainer sets the model's gradient sink. `offload`: where masters and moments live.
std::unique_ptr<Trainer> make_trainer(const TrainerConfig& config, weights::WeightStore& store, model::Model& model,
                                      const std::optional<OptimizerOffload>& offload = std::nullopt);

}  // namespace tandem::trainer
