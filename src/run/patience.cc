#include "run/patience.h"

#include <fmt/format.h>

#include <cmath>

#include "base/check.h"
#include "base/log.h"
#include "base/message_text.h"
#include "evaluation/rollout_metrics.h"
#include "report/sample_file.h"

namespace tandem::run {

int64_t count_skipped(int64_t skipped_before, const report::Metrics& step_metrics) {
  if (step_metrics.at("train/zero_gradient") != 0.0) return skipped_before;
  return step_metrics.at("train/step_skipped") == 0.0 ? 0 : skipped_before + 1;
}

std::string skipped_text(const report::Metrics& step_metrics, const DescribeNotFinite& describe_not_finite) {
  const double loss = step_metrics.at("train/loss"), norm = step_metrics.at("train/grad_norm");
  std::string text =
      fmt::format("loss {}, gradient norm {}", report::number_text(loss, 6), report::number_text(norm, 6));
  if (std::isfinite(loss) && std::isfinite(norm)) return text;
  const std::string damaged = describe_not_finite();
  return damaged.empty() ? text : text + "; " + damaged;
}

void Patience::observe_step(int64_t rollout_id, const report::Metrics& step_metrics, const sampling::Rollout& rollout,
                            RunLog& log) {
  skipped_steps_ = count_skipped(skipped_steps_, step_metrics);
  if (step_metrics.at("train/step_skipped") == 0.0) return;
  const std::string what = skipped_text(step_metrics, describe_not_finite_);
  base::log_warning("rollout {}: an optimizer step was skipped: {}; nothing was changed", rollout_id + 1, what);
  if (skipped_steps_ < limits_.max_skipped_steps || !why_to_stop_.empty()) return;
  const std::string path = fmt::format("{}/{}.jsonl", directory_.fault_folder(), rollout_id);
  log.write_samples(path, rollout.samples, rollout.grades, report::SampleDetail::kFull);
  why_to_stop_ = fmt::format(
      "{} in a row {} skipped (--max-skipped-steps): lower --lr, or look at the batch in {}; the last had {}",
      base::counted(skipped_steps_, "optimizer step"), skipped_steps_ == 1 ? "was" : "were", path, what);
}

void Patience::observe_rollout(int64_t rollout_id, const sampling::Rollout& rollout) {
  if (!why_to_stop_.empty()) throw UserError(why_to_stop_);
  const bool has_no_advantages = !rollout.advantage_failure.empty();
  const bool has_filter_failed = rollout.filtered && rollout.filtered->always_failed();
  ungraded_rollouts_ = rollout.all_failed() || has_no_advantages ? ungraded_rollouts_ + 1 : 0;
  last_failed_ = has_no_advantages ? "--custom-advantage-path" : evaluation::what_failed(rollout);
  last_failure_ = has_no_advantages ? rollout.advantage_failure : rollout.first_failure;
  const bool has_failed = rollout.all_failed() || has_filter_failed || has_no_advantages;
  failed_rollouts_ = has_failed ? failed_rollouts_ + 1 : 0;
  const std::string rollouts = base::counted(failed_rollouts_, "rollout");
  TANDEM_USER_CHECK(!has_no_advantages || failed_rollouts_ < limits_.max_failed_rollouts,
                    fmt::format("rollout {}: --custom-advantage-path failed, the last of {} in a row that failed "
                                "(--max-failed-rollouts), so nothing is learnt: mend it: {}",
                                rollout_id + 1, rollouts, rollout.advantage_failure));
  TANDEM_USER_CHECK(!has_filter_failed || failed_rollouts_ < limits_.max_failed_rollouts,
                    fmt::format("rollout {}: the filter of --dynamic-sampling-filter-path failed on every group, the "
                                "last of {} in a row that failed (--max-failed-rollouts), so it filters nothing: mend "
                                "it; the first of this rollout: {}",
                                rollout_id + 1, rollouts, rollout.filtered->first_failure));
  const std::string failed = evaluation::what_failed(rollout);
  const std::string cause = failed == "grading" ? "the reward" : failed;
  TANDEM_USER_CHECK(failed_rollouts_ < limits_.max_failed_rollouts,
                    fmt::format("rollout {}: {} failed on every sample of {} in a row (--max-failed-rollouts), so "
                                "nothing is learnt: mend what fails; the first of this rollout: {}",
                                rollout_id + 1, cause, rollouts, rollout.first_failure));
}

void Patience::check_that_some_were_graded(int64_t num_finished) const {
  if (num_finished == 0 || ungraded_rollouts_ < num_finished) return;
  const bool is_one = num_finished == 1;
  const std::string rollouts = base::counted(num_finished, "rollout");
  const std::string first = last_failure_.empty() ? "" : "; the first of the last rollout: " + last_failure_;
  if (last_failed_ != "grading") {
    throw UserError(fmt::format("{} failed in {}, so nothing was learnt: mend it{}", last_failed_,
                                is_one ? "the run's only rollout" : "each of the run's " + rollouts, first));
  }
  throw UserError(
      fmt::format("no sample of the run's {} was graded, because grading failed for all of them, so nothing "
                  "was learnt: mend the reward{}",
                  is_one ? "only rollout" : rollouts, first));
}

void Patience::save(checkpoint::RunState& state) const {
  state.skipped_in_a_row = skipped_steps_;
  state.failed_in_a_row = failed_rollouts_;
  state.ungraded_in_a_row = ungraded_rollouts_;
}

}  // namespace tandem::run
