// The numbers of a rollout, and what is warned of in one: records, lines and evaluations are made of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/reward_options.h"
#include "report/report.h"
#include "sampling/rollout_phase.h"

namespace tandem::sampling {

// The means of what TRL functions gave to log_metric, over all their calls.
report::Metrics logged_metrics(const Rollout& rollout);
// Of dynamic sampling: rollout/dynamic_filter/*, fault/dynamic_filter where the filter failed; nothing without it.
report::Metrics filter_metrics(const Rollout& rollout);
// Whether the user's function makes the samples, in turns with the engine.
bool has_turns(const Rollout& rollout);
// Of such samples: multi_turn/*, under slime's names, fault/custom_generate where the function failed, and perf/* of
// its processes and of the keys and values that are kept between turns; nothing of other samples.
report::Metrics turn_metrics(const Rollout& rollout);
// Of each reward of a sum: "NAME/mean" and "NAME/std" (n - 1) over the samples that it applied to, as
// TRL names them; std of two samples or more.
report::Metrics part_metrics(const Rollout& rollout);
// "pass@1", "pass@2", ...: rl::pass_rates of the samples that have a reward and to which the rule's reward applies. A
// sample whose grading failed has not passed, whatever reward it was given.
report::Metrics pass_metrics(const Rollout& rollout, const config::PassRule& rule);
// Returns the highest value of the rule's reward if its values differ and none of them passes: the threshold may be
// above anything that the reward gives. Returns nullopt otherwise.
std::optional<double> highest_without_pass(const Rollout& rollout, const config::PassRule& rule);
// rollout/* of a rollout, with the prefix: rl::rollout_metrics, grader failures by class, means of the other numbers
// that rewards return or log. passrate/* by `pass`, where it is given.
report::Metrics rollout_report(const Rollout& rollout, bool per_token, const std::optional<config::PassRule>& pass);
// perf/* of its generation.
report::Metrics rollout_times(const Rollout& rollout);

// How many gradings failed, for which classes of reasons, and how many samples were dropped for it:
// PREFIX/grader_failed, PREFIX/grader_failed/CLASS, and PREFIX/dropped where there are any.
report::Metrics failure_metrics(const Rollout& rollout, const std::string& prefix);

// Says how many groups the filter could not judge, and why not the first.
void warn_of_filter(const Rollout& rollout, const std::string& title);

// Of a rollout with failures, the subject of a sentence: "grading", or the flag of the function that failed.
std::string what_failed(const Rollout& rollout);

// Says once how many gradings failed, what their samples were given and why the first one did.
void warn_of_failures(const Rollout& rollout, const std::string& title);

// Names the first reward that is so large that its square is no double: what statistics make of it may be NaN, a step
// with it is then skipped. `rollout_id` counts from 0.
void warn_of_large_rewards(const Rollout& rollout, int64_t rollout_id);

}  // namespace tandem::sampling
