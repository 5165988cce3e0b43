#include "trainer/distillation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "memory/arena_allocator.h"
#include "trainer/divergence.h"
#include "trainer/varlen_attention.h"

namespace tandem::trainer {

Distillation::Distillation(const rl::OpdConfig& config, const TeacherOf& teacher_of, const PackedBatch& batch)
    : config_(config) {
  const at::NoGradGuard without_graph;
  for (size_t s = 0; s < batch.samples.size(); ++s) {
    const model::Model* const model = &teacher_of(*batch.samples[s]);
    auto found = std::ranges::find(teachers_, model, &Teacher::model);
    if (found == teachers_.end()) found = teachers_.insert(found, Teacher{.model = model, .normed_TE = {}});
    const auto teacher = static_cast<size_t>(found - teachers_.begin());
    const int64_t begin = batch.target_offsets[s], end = batch.target_offsets[s + 1];
    if (!stretches_.empty() && stretches_.back().teacher == teacher) {
      stretches_.back().end = end;
    } else if (begin < end) {
      stretches_.push_back({.teacher = teacher, .begin = begin, .end = end});
    }
  }
  for (Teacher& teacher : teachers_) {
    const memory::TagScope blocks(memory::Tag::kBlockScratch);
    VarlenAttention attention(teacher.model->ops(), batch);
    at::Tensor normed_TE = model::forward_hidden(*teacher.model, batch.ids_T, batch.positions_T, attention);
    teacher.normed_TE = std::move(normed_TE);
  }
  const memory::TagScope head(memory::Tag::kHead);
  divergence_R_ = at::zeros({batch.num_targets()}, batch.ids_T.options().dtype(at::kFloat));
}

void Distillation::set_weights(at::Tensor ddivergence_R) { ddivergence_R_ = std::move(ddivergence_R); }

at::Tensor Distillation::differentiate_rows(const Stretch& rows, const at::Tensor& logits_RV,
                                            const at::Tensor& logit_rows_R, double temperature) {
  const Teacher& teacher = teachers_[rows.teacher];
  at::Tensor hidden_RE = teacher.model->ops().embedding(teacher.normed_TE, logit_rows_R);
  at::Tensor teacher_RV = teacher.model->head(hidden_RE);
  hidden_RE.reset();
  Divergence result = divergence(logits_RV, std::move(teacher_RV), temperature, config_.beta, config_.top_k);
  const int64_t count = rows.end - rows.begin;
  divergence_R_.narrow(0, rows.begin, count).copy_(result.divergence_R);
  result.dlogits_RV.mul_(ddivergence_R_.narrow(0, rows.begin, count).unsqueeze(-1));
  return std::move(result.dlogits_RV);
}

at::Tensor Distillation::differentiate(const at::Tensor& logits_RV, const at::Tensor& logit_rows_R, int64_t begin,
                                       double temperature) {
  TANDEM_CHECK(ddivergence_R_.defined(), "the weights of the divergences are not set");
  const int64_t end = begin + logits_RV.size(0);
  at::Tensor dlogits_RV;
  for (const Stretch& stretch : stretches_) {
    const Stretch rows = {
        .teacher = stretch.teacher, .begin = std::max(stretch.begin, begin), .end = std::min(stretch.end, end)};
    const int64_t count = rows.end - rows.begin;
    if (count <= 0) continue;
    at::Tensor part = differentiate_rows(rows, logits_RV.narrow(0, rows.begin - begin, count),
                                         logit_rows_R.narrow(0, rows.begin - begin, count), temperature);
    if (count == end - begin) return part;
    if (!dlogits_RV.defined()) dlogits_RV = at::empty_like(logits_RV);
    dlogits_RV.narrow(0, rows.begin - begin, count).copy_(part);
  }
  return dlogits_RV;
}

}  // namespace tandem::trainer
