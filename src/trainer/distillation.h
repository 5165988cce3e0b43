// The term of the loss that compares the policy's whole distribution of each token with its teacher's. Teachers run
// over a micro-batch before the policy does and leave their last hidden states; their logits are computed beside the
// policy's, a chunk of rows at a time, so that neither model's logits of a batch ever exist.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/model.h"
#include "rl/loss_config.h"
#include "trainer/packed_batch.h"
#include "trainer/trainer.h"

namespace tandem::trainer {

// The distillation of one micro-batch. Teachers and configuration are borrowed.
class Distillation {
 public:
  // Runs each teacher of the batch's samples over all of it, without gradients.
  Distillation(const rl::OpdConfig& config, const TeacherOf& teacher_of, const PackedBatch& batch);

  // Sets the gradient of the loss by each target's divergence, [R] float32, before the first differentiate().
  void set_weights(at::Tensor ddivergence_R);

  // Returns the gradient of the term by the policy's logits of the targets [begin, begin + n), [n, V] float32, and
  // keeps their divergences. logit_rows_R are the rows of the batch that predict them, int32 [n].
  at::Tensor differentiate(const at::Tensor& logits_RV, const at::Tensor& logit_rows_R, int64_t begin,
                           double temperature);

  // Returns the divergence of each target, [R] float32, that differentiate() was called for; 0 elsewhere.
  const at::Tensor& divergence_R() const { return divergence_R_; }

 private:
  // Neighbouring targets that one teacher has.
  struct Stretch {
    size_t teacher;
    int64_t begin, end;
  };
  struct Teacher {
    const model::Model* model;
    at::Tensor normed_TE;
  };
  at::Tensor differentiate_rows(const Stretch& rows, const at::Tensor& logits_RV, const at::Tensor& logit_rows_R,
                                double temperature);

  const rl::OpdConfig& config_;
  std::vector<Teacher> teachers_;
  std::vector<Stretch> stretches_;
  at::Tensor ddivergence_R_, divergence_R_;
};

}  // namespace tandem::trainer
