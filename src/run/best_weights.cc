#include "run/best_weights.h"

#include <fmt/format.h>

#include <utility>

#include "base/files.h"
#include "base/log.h"
#include "memory/arena_allocator.h"
#include "session/together.h"
#include "weights/checkpoint_files.h"

namespace tandem::run {

BestWeights::BestWeights(evaluation::Evaluation::RewardMetric metric, const session::ModelSession& session,
                         const checkpoint::RunDirectory& directory, const mesh::Mesh& mesh, RunLog& log,
                         const checkpoint::RunState& start)
    : metric_(std::move(metric)), session_(session), directory_(directory), mesh_(mesh), log_(log), best_(start.best) {
  if (metric_.name.empty()) best_.reset();
  if (best_ && best_->metric != metric_.name) {
    begin_again(fmt::format("the best evaluation of the checkpoint is one of {} ({}, rollout {})", best_->metric,
                            report::number_text(best_->value, 4), best_->step));
  }
  if (best_ && best_->judged_by != metric_.judged_by) {
    const auto shown = [](const std::string& rule) { return rule.empty() ? "reward 1" : rule; };
    begin_again(fmt::format(
        "samples passed by {} when the checkpoint was made and pass by {} now (--pass-reward, --pass-threshold)",
        shown(best_->judged_by), shown(metric_.judged_by)));
  }
  if (best_ && !best_->asked.empty() && best_->asked != metric_.asked) {
    begin_again(fmt::format("the evaluation was of {} when the checkpoint was made, and is of {} now", best_->asked,
                            metric_.asked));
  }
  if (best_ && !has_weights()) {
    begin_again(fmt::format("the best weights so far, of rollout {}, are not in {}", best_->step, directory_.path()));
  }
}

// The weights from before training are --hf-checkpoint, which stays where it is. All ranks ask at the same places.
bool BestWeights::has_weights() const {
  return best_->step == 0 ||
         session::of_conductor(mesh_.host(), [this] { return base::directory_exists(directory_.best(best_->step)); });
}

void BestWeights::begin_again(const std::string& why) {
  std::string kept;
  if (best_->step > 0 && has_weights()) {
    kept = fmt::format(
        "; the best weights so far, in {}, are removed once a checkpoint has newer ones: copy them to keep "
        "them",
        directory_.best(best_->step));
  }
  base::log_warning("--save-best {}: {}, so the next evaluation is the one to beat{}", metric_.name, why, kept);
  best_.reset();
}

void BestWeights::observe(int64_t step, const report::Metrics& metrics) {
  if (metric_.name.empty()) return;
  const auto found = metrics.find(metric_.name);
  // There is no number if grading failed for a whole data set, or if no prompt has as many samples as pass@K counts.
  if (found == metrics.end()) {
    if (mesh_.is_conductor())
      base::log_warning("--save-best {}: the evaluation behind rollout {} has no such number, so it saves nothing",
                        metric_.name, step);
    return;
  }
  if (best_ && found->second <= best_->value) return;
  const checkpoint::BestEvaluation best = {.metric = metric_.name,
                                           .step = step,
                                           .value = found->second,
                                           .judged_by = metric_.judged_by,
                                           .asked = metric_.asked};
  if (step == 0 || mesh_.data().rank() > 0) {
    best_ = best;
    return;
  }
  bool is_written = false;
  log_.write_or_count("the best weights", "fault/save_errors", [&] {
    const memory::BypassArena beside;  // the export's memory outlives a change of phase
    session_.export_trained(directory_.best(step), mesh_.tensor().host);
    if (mesh_.is_conductor()) directory_.set_best(step);
    is_written = true;
    log_.report().print(fmt::format("best {} so far: {}  -> {}", metric_.name, report::number_text(best.value, 4),
                                    directory_.best(step)));
  });
  // Ranks that write together keep the same number to beat.
  if (!device::any_of(mesh_.tensor().host, !is_written)) best_ = best;
}

}  // namespace tandem::run
