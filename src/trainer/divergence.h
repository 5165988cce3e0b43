// Computes the divergence of one distribution over the vocabulary from another, and its gradient, by rows of logits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tandem::trainer {

struct Divergence {
  at::Tensor divergence_R;  // [R] float32, nats
  at::Tensor dlogits_RV;    // [R, V] float32: the gradient of each row's divergence by the policy's logits
};

// Returns the generalised Jensen-Shannon divergence of arXiv 2306.13649, eq. 1, as TRL's generalized_jsd_loss computes
// it for each token: with p and q the softmax of the policy's and the teacher's logits over `temperature`, and
// m = (1 - beta) p + beta q, beta KL(q || m) + (1 - beta) KL(p || m); at beta 0 KL(q || p), at beta 1 KL(p || q).
//
// logits_RV and teacher_RV are float32, [R, V] and [R, V' >= V]; columns beyond V are not looked at. With top_k > 0
// both distributions are over the top_k tokens whose teacher logits are the largest, renormalised, and other columns
// have no gradient. Consumes the teacher's logits. What it allocates beside its arguments is stated in trainer_plan.cc.
Divergence divergence(const at::Tensor& logits_RV, at::Tensor teacher_RV, double temperature, double beta,
                      int64_t top_k);

}  // namespace tandem::trainer
