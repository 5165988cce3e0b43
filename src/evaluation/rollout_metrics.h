// Computes the metrics of a rollout, and warns about it. Records, lines and evaluations are made of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/reward_options.h"
#include "report/report.h"
#include "rl/learning_health.h"
#include "rl/rollout_signal.h"
#include "sampling/rollout.h"

namespace tandem::evaluation {

// Returns the mean of each metric that TRL functions gave to log_metric, over all their calls.
report::Metrics logged_metrics(const sampling::Rollout& rollout);
// Returns the metrics of --partial-rollout: how old the samples are, and what goes on. Empty without it.
report::Metrics in_flight_metrics(const sampling::Rollout& rollout);
// Returns for each reward of a sum "NAME/mean" and "NAME/std" (n - 1) over the samples that it applied to, as TRL names
// them. std needs two samples.
report::Metrics part_metrics(const sampling::Rollout& rollout);
// Returns "pass@1", "pass@2", ...: rl::pass_rates of the samples that have a reward and to which the rule's reward
// applies. A sample whose grading failed has not passed, whatever reward it was given.
report::Metrics pass_metrics(const sampling::Rollout& rollout, const config::PassRule& rule);
// Returns the highest value of the rule's reward if its values differ and none of them passes: the threshold may be
// above anything that the reward gives. Returns nullopt otherwise.
std::optional<double> highest_without_pass(const sampling::Rollout& rollout, const config::PassRule& rule);
// Returns the record's rollout/* metrics: rl::rollout_metrics, grader failures by class, and means of the other numbers
// that rewards return or log; with `pass` also passrate/*.
report::Metrics rollout_report(const sampling::Rollout& rollout, bool per_token,
                               const std::optional<config::PassRule>& pass,
                               rl::SignalOf signal = rl::SignalOf::kAdvantages, bool count_removed = true);
// Returns perf/* of its generation.
report::Metrics rollout_times(const sampling::Rollout& rollout);

// Returns how many gradings failed, for which classes of reasons, and how many samples were dropped for it:
// PREFIX/grader_failed, PREFIX/grader_failed/CLASS, and PREFIX/dropped if there are any.
report::Metrics failure_metrics(const sampling::Rollout& rollout, const std::string& prefix);

// Returns the number of samples without a reward because the reward does not apply to them (a TRL function gave None).
// They are among the rollout's failures, and nothing failed.
int64_t num_not_applied_to(const sampling::Rollout& rollout);

// Returns "sample 12: ValueError: ..." for the first sample whose grading failed; "" where none did.
std::string first_failed(const sampling::Rollout& rollout);

// Returns whether every grading that failed did so for the machine or a service, and none for the reward or its data.
bool failed_for_environment(const sampling::Rollout& rollout);

// Returns what the causes of the failures are, for rl::LearningHealth.
rl::FailureCauses failure_causes(const sampling::Rollout& rollout);

// Warns of groups that the filter could not judge: how many, and why not the first.
void warn_of_filter(const sampling::Rollout& rollout, const std::string& title);

// Returns the subject of a sentence about a rollout with failures: "grading", or the flag of the function that failed.
std::string what_failed(const sampling::Rollout& rollout);

// Warns of gradings that failed: how many, what their samples were given, and why the first one did. A reward that does
// not apply to a sample has not failed.
void warn_of_failures(const sampling::Rollout& rollout, const std::string& title);

// Warns of the first reward that is so large that its square is no double. Statistics made of it may be NaN, and a step
// with it is then skipped. `rollout_id` counts from 0.
void warn_of_large_rewards(const sampling::Rollout& rollout, int64_t rollout_id);

}  // namespace tandem::evaluation
