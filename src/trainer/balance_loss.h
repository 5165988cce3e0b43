// The loss that balances the experts of a sparse model, in each sample by itself, and its gradient. In a layer with X
// experts, C of them for a token, and for a sample of T rows
//
//   loss = sum_i f_i P_i      f_i = X / (C T) * number of rows that chose expert i
//                             P_i = 1 / T * sum over the rows of softmax(logits)_i
//
// which is 1 where the load or the probabilities are equal, and at most X / C. f is a constant, the gradient goes
// through P. It is the sequence-wise balance loss of DeepSeek-V3 (arXiv 2412.19437, equations 17 to 20), and
// Megatron-core's with --moe-router-load-balancing-type seq_aux_loss. (transformers' load_balancing_loss_func is
// another one: over the tokens of all samples and layers together, and C times as large.) The optimizer step's term is
//
//   coefficient * sum over layers of (mean over samples of loss)
//
// Samples are those that have a token in their loss mask, and their rows are those of prompt and completion alike. The
// last token of a completion has no row. A prompt that is stored once for several samples has the sum of their
// gradients, so a step's gradient is that of its samples, whatever share a micro-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "device/ops.h"
#include "model/config.h"
#include "model/routing_loss.h"
#include "trainer/packed_batch.h"
#include "trainer/ranks.h"

namespace tandem::trainer {

// Everything is computed on the device, and the host waits in end_step() alone. The order of all sums is fixed by the
// batch, so the gradient is repeatable; the loss is a sum of integers, with the same bits for any number of ranks.
class BalanceLoss final : public model::RoutingLoss {
 public:
  // Ops is borrowed. `config` is that of a sparse model.
  BalanceLoss(const model::ModelConfig& config, const device::Ops& ops);

  // Begins an optimizer step in which each sample's term has this factor.
  void begin_step(double factor);
  // The gradients from now on are those of this batch. counts[s] says whether sample s has a term. It allocates
  // balance_bytes().batch (trainer_plan.h) until the next one or end_step(). Returns whether a sample has a term.
  bool begin_batch(const PackedBatch& batch, const std::vector<bool>& counts);
  // Adds the loss of a layer to the step's. It allocates balance_bytes().work, result included.
  at::Tensor logits_gradient(const at::Tensor& logits_TX, const device::Routing& routing) override;
  // Returns the sum of the loss over the samples of all ranks, as a mean over layers, and frees the memory. All ranks
  // call it together.
  double end_step(const Ranks& ranks);
  // Frees the memory after a step that was given up.
  void release();

 private:
  // Returns f / T of each segment of rows: what P's gradient is for a row of it.
  at::Tensor segment_gradients(const device::Routing& routing) const;

  const device::Ops& ops_;
  const int64_t layers_, experts_, chosen_;
  double factor_ = 0.0;
  at::Tensor sum_;  // int64 [1]: loss of the step so far, in units of 2^-32

  // The rows of a batch are segments: those of each prompt, then the own rows of each sample. G prompts, S samples.
  struct Segments {
    at::Tensor of_row_T;     // int32
    at::Tensor prompt_of_S;  // int32: segment of a sample's prompt
    at::Tensor own_of_S;     // int32: segment of its own rows
    at::Tensor scale_S1;     // float32: X / (C T^2), 0 of a sample without a term
    // The first sample of each prompt, then the second of those that have two, and so on: int32, with the number of
    // prompts of each turn. Prompts with more samples have lower numbers.
    at::Tensor by_turn_S;
    std::vector<int64_t> prompts_of_turn;
    int64_t num_prompts() const { return prompts_of_turn.front(); }
    int64_t num_samples() const { return own_of_S.size(0); }
  } segments_;
};

}  // namespace tandem::trainer
