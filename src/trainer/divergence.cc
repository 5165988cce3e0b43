#include "trainer/divergence.h"

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace tandem::trainer {

namespace {

at::Tensor log_softmax(const at::Tensor& logits, double temperature) {
  return at::log_softmax(temperature == 1.0 ? logits : logits.div(temperature), -1);
}

// Computes both in the memory of their logarithms, which it consumes: at most four matrices exist at once.
Divergence of_log_probs(at::Tensor policy, at::Tensor teacher, double beta) {
  if (beta == 0.0) {
    const at::Tensor q = teacher.exp();
    at::Tensor divergence = teacher.sub_(policy).mul_(q).sum(-1);
    return {.divergence_R = std::move(divergence), .dlogits_RV = policy.exp_().sub_(q)};
  }
  at::Tensor mixture = teacher, of_teacher;
  if (beta < 1.0) {
    mixture = policy.add(std::log1p(-beta));
    at::logaddexp_out(mixture, mixture, teacher.add(std::log(beta)));
    at::Tensor terms = teacher.sub(mixture);
    of_teacher = terms.mul_(teacher.exp_()).sum(-1);
  }
  teacher.reset();
  // The gradient of KL(p || m) by the logits is p (d - E[d]), with d = log p - log m and E the mean under p: what the
  // mixture's own dependence on p adds is cancelled by that of KL(q || m).
  at::Tensor weighted = mixture.neg_().add_(policy);
  mixture.reset();
  const at::Tensor p = policy.exp_();
  weighted.mul_(p);
  at::Tensor of_policy = weighted.sum(-1);
  weighted.sub_(p.mul_(of_policy.unsqueeze(-1)));
  if (beta == 1.0) return {.divergence_R = std::move(of_policy), .dlogits_RV = std::move(weighted)};
  return {.divergence_R = of_teacher.mul_(beta).add_(of_policy, 1.0 - beta), .dlogits_RV = weighted.mul_(1.0 - beta)};
}

}  // namespace

Divergence divergence(const at::Tensor& logits_RV, at::Tensor teacher_RV, double temperature, double beta,
                      int64_t top_k) {
  const int64_t vocab = logits_RV.size(1);
  TANDEM_CHECK(teacher_RV.size(0) == logits_RV.size(0) && teacher_RV.size(1) >= vocab, teacher_RV.size(0),
               teacher_RV.size(1));
  teacher_RV = teacher_RV.narrow(1, 0, vocab);
  if (top_k == 0 || top_k >= vocab) {
    at::Tensor teacher = log_softmax(teacher_RV, temperature);
    teacher_RV.reset();  // its logits are gone before the policy's log-probs exist
    Divergence result = of_log_probs(log_softmax(logits_RV, temperature), std::move(teacher), beta);
    result.dlogits_RV.div_(temperature);
    return result;
  }
  const auto [values, columns] = at::topk(teacher_RV, top_k, -1);
  teacher_RV.reset();
  Divergence few =
      of_log_probs(log_softmax(logits_RV.gather(1, columns), temperature), log_softmax(values, temperature), beta);
  at::Tensor dlogits_RV = at::zeros_like(logits_RV);
  dlogits_RV.scatter_(1, columns, few.dlogits_RV.div_(temperature));
  return {.divergence_R = std::move(few.divergence_R), .dlogits_RV = std::move(dlogits_RV)};
}

}  // namespace tandem::trainer
