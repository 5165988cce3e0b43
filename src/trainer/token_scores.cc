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

namespace {

TokenScores make_scores(int64_t rows, const at::Tensor& normed_TE) {
  const at::TensorOptions wide = normed_TE.options().dtype(at::kFloat);
  return {.logprobs_R = at::empty({rows}, wide),
          .entropy_R = at::empty({rows}, wide),
          .logsumexp_R = at::empty({rows}, wide),
          .divergence_R = {},
          .logits_RV = {}};
}

// The head over rows [begin, begin + n) of a batch's targets, and its backward.
class Chunk {
 public:
  Chunk(const model::Model& model, const PackedBatch& batch, const at::Tensor& normed_TE, const HeadOptions& options,
        int64_t begin, int64_t n)
      : model_(model),
        temperature_(options.temperature),
        begin_(begin),
        n_(n),
        targets_R_(rows_of(batch.targets_R)),
        logit_rows_R_(rows_of(batch.logit_rows_R)),
        hidden_RE_(model.ops().embedding(normed_TE, logit_rows_R_)) {}

  // Logits exist from here on, or from an earlier forward.
  void compute_logits() { logits_RV_ = model_.head(hidden_RE_); }
  void set_logits(at::Tensor logits_RV) { logits_RV_ = std::move(logits_RV); }
  bool has_logits() const { return logits_RV_.defined(); }
  at::Tensor take_logits() { return std::move(logits_RV_); }
  // Called where nothing is differentiated.
  void drop_hidden() { hidden_RE_.reset(); }

  // Each rank of a model that is spread over several scores its own rows, for all.
  void score(const TokenScores& scores) const {
    const model::TensorRanks& ranks = model_.ranks();
    const at::Tensor logprobs_R = rows_of(scores.logprobs_R), entropy_R = rows_of(scores.entropy_R),
                     logsumexp_R = rows_of(scores.logsumexp_R);
    model_.ops().logprob(model_.own_logits(logits_RV_), ranks.own_rows(targets_R_), temperature_,
                         ranks.own_rows(logprobs_R), ranks.own_rows(entropy_R), ranks.own_rows(logsumexp_R));
    ranks.complete_rows({logprobs_R, entropy_R, logsumexp_R});
  }
  // Consumes the logits and adds to dnormed_TE in float32, since a prompt's last row predicts the first token of every
  // sample of its group.
  void differentiate(const TokenScores& scores, const at::Tensor& dlogprobs_R, const at::Tensor& dentropy_R,
                     const at::Tensor& dnormed_TE, Distillation* distillation) {
    const device::Ops& ops = model_.ops();
    at::Tensor ddistilled_RV;
    if (distillation != nullptr) {
      ddistilled_RV = distillation->differentiate(logits_RV_, logit_rows_R_, begin_, temperature_);
    }
    const at::Tensor dlogits_RV =
        ops.logprob_backward(logits_RV_, targets_in_part(), temperature_, rows_of(dlogprobs_R),
                             dentropy_R.defined() ? rows_of(dentropy_R) : dentropy_R, rows_of(scores.entropy_R),
                             rows_of(scores.logsumexp_R), model_.dtype());
    logits_RV_.reset();  // frees them where the gradient does not reuse their memory
    if (ddistilled_RV.defined()) dlogits_RV.add_(std::exchange(ddistilled_RV, {}));
    ops.embedding_backward(model_.head_backward(dlogits_RV, hidden_RE_), logit_rows_R_, dnormed_TE);
  }

 private:
  at::Tensor rows_of(const at::Tensor& all) const { return all.narrow(0, begin_, n_); }
  // Returns the targets as columns of this rank's logits (Ops::logprob_backward): those of others are past their end.
  at::Tensor targets_in_part() const {
    if (model_.ranks().is_alone()) return targets_R_;
    const model::VocabRows part = model::vocab_rows(model_.config());
    const at::Tensor columns_R = targets_R_.sub(part.begin);
    return columns_R.masked_fill(columns_R.lt(0), part.count()).masked_fill(targets_R_.lt(0), -1);
  }

  const model::Model& model_;
  const double temperature_;
  const int64_t begin_, n_;
  const at::Tensor targets_R_, logit_rows_R_;
  at::Tensor hidden_RE_, logits_RV_;
};

at::Tensor float_zeros(const at::Tensor& normed_TE) {
  return at::zeros(normed_TE.sizes(), normed_TE.options().dtype(at::kFloat));
}

}  // namespace

TokenScores score_targets(const model::Model& model, const PackedBatch& batch, const at::Tensor& normed_TE,
                          const HeadOptions& options, bool keep_logits) {
  const at::NoGradGuard without_graph;
  const int64_t rows = batch.num_targets();
  TokenScores scores = make_scores(rows, normed_TE);
  for_each_chunk(rows, options.chunk_rows, [&](int64_t begin, int64_t n) {
    Chunk chunk(model, batch, normed_TE, options, begin, n);
    chunk.compute_logits();
    chunk.drop_hidden();
    chunk.score(scores);
    if (keep_logits && n == rows) scores.logits_RV = chunk.take_logits();
  });
  return scores;
}

at::Tensor score_targets_backward(const model::Model& model, const PackedBatch& batch, const at::Tensor& normed_TE,
                                  const HeadOptions& options, TokenScores scores, const at::Tensor& dlogprobs_R,
                                  const at::Tensor& dentropy_R, Distillation* distillation) {
  const at::NoGradGuard without_graph;
  const at::Tensor dnormed_TE = float_zeros(normed_TE);
  for_each_chunk(batch.num_targets(), options.chunk_rows, [&](int64_t begin, int64_t n) {
    Chunk chunk(model, batch, normed_TE, options, begin, n);
    chunk.set_logits(std::exchange(scores.logits_RV, {}));
    if (!chunk.has_logits()) chunk.compute_logits();
    chunk.differentiate(scores, dlogprobs_R, dentropy_R, dnormed_TE, distillation);
  });
  return dnormed_TE.to(normed_TE.scalar_type());
}

ScoredGradient score_targets_with_backward(const model::Model& model, const PackedBatch& batch,
                                           const at::Tensor& normed_TE, const HeadOptions& options,
                                           const at::Tensor& dlogprobs_R, const at::Tensor& dentropy_R,
                                           Distillation* distillation) {
  const at::NoGradGuard without_graph;
  TokenScores scores = make_scores(batch.num_targets(), normed_TE);
  const at::Tensor dnormed_TE = float_zeros(normed_TE);
  for_each_chunk(batch.num_targets(), options.chunk_rows, [&](int64_t begin, int64_t n) {
    Chunk chunk(model, batch, normed_TE, options, begin, n);
    chunk.compute_logits();
    chunk.score(scores);
    chunk.differentiate(scores, dlogprobs_R, dentropy_R, dnormed_TE, distillation);
  });
  if (distillation != nullptr) scores.divergence_R = distillation->divergence_R();
  return {.scores = std::move(scores), .dnormed_TE = dnormed_TE.to(normed_TE.scalar_type())};
}

}  // namespace tandem::trainer
