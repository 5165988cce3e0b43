// Trains a model: packed batches go through the model's own layer loop, gradients are float32, AdamW updates float32
// masters, and the result is written into the weight store. One call is one optimizer step.
//
// Contract of a step: the gradient is exactly that of the loss over all its samples, whatever the token budget splits
// them into; it depends on sample order and budget, never on arrival order. A forward here gives bit for bit the
// engine's log-probs.
//
// Several data ranks take a step together: each is given all samples, computes its share of the micro-batches and owns
// a share of gradients, masters and moments (ZeRO-2). Weights, masters, moments and metrics have the same bits for any
// number of ranks: a micro-batch depends on samples and configuration alone, and its gradient is added in its turn.
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
#include "rl/sample.h"
#include "trainer/optimizer_offload.h"
#include "trainer/optimizer_progress.h"
#include "trainer/optimizer_tensor.h"
#include "trainer/ranks.h"
#include "trainer/trainer_config.h"
#include "weights/store.h"

namespace tandem::trainer {

class StepAbandoned : public std::runtime_error {
 public:
  StepAbandoned() : std::runtime_error("the optimizer step was abandoned") {}
};

using Metrics = std::map<std::string, double>;

// Names the weights that gave the samples' rollout log-probs. With these weights, a forward here gives the very same
// numbers, bit for bit (docs/EXACTNESS.md), as in a rollout's first optimizer step. Then the loss's gradient is known
// before the forward, logits are computed once, and nothing waits for the device between two micro-batches. An
// adapter's dropout is in the step's forward alone: the gradient then is that of a forward with it, at these log-probs.
enum class RolloutLogprobs : uint8_t { kOfOtherWeights, kOfTheseWeights };

class Trainer {
 public:
  virtual ~Trainer() = default;

  // Takes one optimizer step over `samples` (in sample order; the same on every rank). `version` is that of the weights
  // before the first step on these samples, which are the ones that are trained; spans of the samples say which tokens
  // other weights sampled, and `logprobs` is about the other tokens. Unset, it is about all. Returns train/* metrics
  // without prefix: those of rl::LossSums, and grad_norm (before clipping), grad_clipped, zero_gradient and
  // step_skipped (1 or 0), lr, and with loss.get_mismatch_metrics recomputed_logprob_abs_diff: the same difference with
  // log-probs from a pass without gradients (at a rollout's first optimizer step, the old ones). A sparse model's step
  // has those of RoutingLoad::end_step() too, with their prefix. The store's version is bumped. A step whose loss or
  // gradient is not finite, or whose gradient is above max_grad_norm_skip, is skipped: weights, masters, moments and
  // version keep their bits. They also keep them, with skip_zero_gradient, where the gradient is exactly 0: nothing
  // went wrong there, and step_skipped is 0. Throws EnvironmentError if the update failed; the step is then lost, as
  // trainer/adamw.h says.
  virtual Metrics step(const std::vector<const rl::Sample*>& samples,
                       RolloutLogprobs logprobs = RolloutLogprobs::kOfOtherWeights,
                       std::optional<uint64_t> version = std::nullopt) = 0;

  // Frees the memory that only training needs, the gradients: between train phases it belongs to the engine. The next
  // step() allocates it again.
  virtual void end_phase() = 0;

  virtual OptimizerProgress progress() const = 0;
  // Returns the state that a checkpoint holds: masters and moments of each packed tensor, which live as long as the
  // trainer (in a float32 store the masters are the store's own tensors), ascending by kind and then by the packed
  // tensor's name. With an offload, masters beside the store and moments lie on the host: the same shapes and bits, so
  // that a trainer of one kind restores what one of the other saved. Throws EnvironmentError if the host has too little
  // memory, or an update failed half way. With several ranks it is the state of the rows that this one owns
  // (trainer/shard.h).
  virtual std::vector<OptimizerTensor> state() const = 0;
  // This is the last call of a restore, after state() was filled: it also rounds the masters into the store. All ranks
  // call it together.
  virtual void restore(const OptimizerProgress& progress) = 0;
  // Returns the gradient of a packed tensor after the last backward, scaled and before clipping, until end_phase(). It
  // has own rows only, and is for tests.
  virtual at::Tensor gradient(const std::string& packed_name) const = 0;
};

// Returns the teacher of a sample, whose weights are on the device while a step is taken.
using TeacherOf = std::function<const model::Model&(const rl::Sample&)>;

// Throws BugError for a configuration that the options refuse. Store and model are borrowed. `store` has the trained
// tensors: the model's weights, or its adapter, beside which the weights are frozen. The trainer sets the model's
// gradient sink. `offload` says where masters and moments live. `ranks` are the ranks that take each step together with
// this one, all with the same configuration and weights. With loss.opd.has_loss() `teacher_of` names the teachers,
// which have no part of several; else it is not called.
std::unique_ptr<Trainer> make_trainer(const TrainerConfig& config, weights::WeightStore& store, model::Model& model,
                                      const std::optional<OptimizerOffload>& offload = std::nullopt,
                                      const Ranks& ranks = no_other_ranks(), TeacherOf teacher_of = {});

}  // namespace tandem::trainer
