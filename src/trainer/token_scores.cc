#include "trainer/token_scores.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tandem::trainer {
namespace {

// Calls f(first row, number of rows) for one chunk after the other.
template <typename F>
void for_each_chunk(int64_t rows, int64_t chunk_rows, F f) {
  TANDEM_CHECK(chunk_rows > 0, "rows of a chunk:", chunk_rows);
  for (int64_t begin = 0; begin < rows; begin += chunk_rows) f(begin, std::min(chunk_rows, rows - begin));
}

}  // namespace

TokenScores score_targets(const model::Model& model, const PackedBatch& batch, const at::Tensor& normed_TE,
                          const HeadOptions& options, bool keep_logits) {
  const at::NoGradGuard without_graph;
  const device::Ops& ops = model.ops();
  const int64_t rows = batch.num_targets();
  const at::TensorOptions wide = normed_TE.options().dtype(at::kFloat);
  TokenScores scores = {.logprobs_R = at::empty({rows}, wide),
                        .entropy_R = at::empty({rows}, wide),
                        .logsumexp_R = at::empty({rows}, wide),
                        .logits_RV = {}};
  for_each_chunk(rows, options.chunk_rows, [&](int64_t begin, int64_t n) {
    at::Tensor logits = model.head(ops.embedding(normed_TE, batch.logit_rows_R.narrow(0, begin, n)));
    ops.logprob(logits, batch.targets_R.narrow(0, begin, n), options.temperature, scores.logprobs_R.narrow(0, begin, n),
                scores.entropy_R.narrow(0, begin, n), scores.logsumexp_R.narrow(0, begin, n));
    if (keep_logits && n == rows) scores.logits_RV = std::move(logits);
  });
  return scores;
}

at::Tensor score_targets_backward(const model::Model& model, const PackedBatch& batch, const at::Tensor& normed_TE,
                                  const HeadOptions& options, TokenScores scores, const at::Tensor& dlogprobs_R,
                                  const at::Tensor& dentropy_R) {
  const at::NoGradGuard without_graph;
  const device::Ops& ops = model.ops();
  // A prompt's last row predicts the first token of every sample of its group: their gradients add up in float32.
  const at::Tensor dnormed_TE = at::zeros(normed_TE.sizes(), normed_TE.options().dtype(at::kFloat));
  for_each_chunk(batch.num_targets(), options.chunk_rows, [&](int64_t begin, int64_t n) {
    const at::Tensor logit_rows = batch.logit_rows_R.narrow(0, begin, n);
    const at::Tensor hidden_RE = ops.embedding(normed_TE, logit_rows);
    at::Tensor logits = std::exchange(scores.logits_RV, {});
    if (!logits.defined()) logits = model.head(hidden_RE);
    const at::Tensor dlogits = ops.logprob_backward(
        logits, batch.targets_R.narrow(0, begin, n), options.temperature, dlogprobs_R.narrow(0, begin, n),
        dentropy_R.defined() ? dentropy_R.narrow(0, begin, n) : dentropy_R, scores.entropy_R.narrow(0, begin, n),
        scores.logsumexp_R.narrow(0, begin, n), model.dtype());
    logits.reset();  // gone where the gradient is not their memory
    ops.embedding_backward(model.head_backward(dlogits, hidden_RE), logit_rows, dnormed_TE);
  });
  return dnormed_TE.to(normed_TE.scalar_type());
}

}  // namespace tandem::trainer
