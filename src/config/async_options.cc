#include "config/async_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/size.h"

namespace tandem::config {

void AsyncOptions::visit(options::Options& options) {
  const char* const group = "loop";
  options.option(partial_rollout, "partial-rollout", group,
                 "completions that have not ended continue in the next rollout, with the newest weights, in phases of "
                 "--rollout-phase-tokens or, with --max-weight-staleness and --rollout-num-gpus, while the run trains");
  options
      .option(phase_tokens, "rollout-phase-tokens", group,
              "with --partial-rollout: most tokens that a completion gets in one phase; about twice the mean length is "
              "good; unset: a quarter of --rollout-max-response-len")
      .at_least(1)
      .at_most(base::kMaxCount);
  options
      .option(
          max_weight_staleness, "max-weight-staleness", group,
          "a group is trained on at most so many rollouts after that of the weights that it began with; more than 0 "
          "without --colocate and --rollout-phase-tokens: devices that sample continue while the run trains; unset: 0, "
          "or with --partial-rollout as long as completions take")
      .at_least(0)
      .at_most(base::kMaxCount);
  options
      .option(replay_schedule, "replay-schedule", group,
              "directory of a run that sampled while it trained: this run, with the same flags, takes the same groups "
              "and samples each token with the same weights, as RUN/schedule.jsonl says, and continues by itself where "
              "that ends")
      .path()
      .does_not_affect_results();
}

void AsyncOptions::check(bool colocate, int64_t rollout_batch_size, int64_t groups_at_once,
                         const rl::LossConfig& loss) const {
  TANDEM_USER_CHECK(
      partial_rollout || !phase_tokens,
      fmt::format(
          "--rollout-phase-tokens {}: needs --partial-rollout; without it each completion is sampled to its end "
          "with the weights that it began with",
          phase_tokens.value_or(0)));
  TANDEM_USER_CHECK(replay_schedule.empty() || is_live(colocate),
                    fmt::format("--replay-schedule {}: needs the flags of that run, --max-weight-staleness among them, "
                                "and --rollout-num-gpus; without them a run needs no schedule to be repeated",
                                replay_schedule));
  if (!keeps_groups(colocate)) {
    TANDEM_USER_CHECK(
        max_weight_staleness.value_or(0) == 0,
        fmt::format("--max-weight-staleness {} with --colocate: the devices that train sample, so nothing is sampled "
                    "meanwhile; give --partial-rollout too, or --rollout-num-gpus in place of --colocate",
                    max_weight_staleness.value_or(0)));
    return;
  }
  if (max_weight_staleness) {
    const int64_t most = base::Size(*max_weight_staleness + 1) * rollout_batch_size;
    TANDEM_USER_CHECK(
        groups_at_once <= most,
        fmt::format("--over-sampling-batch-size {}: with --max-weight-staleness {} at most {} groups can be in flight, "
                    "or some would get too old; lower the one or raise the other",
                    groups_at_once, *max_weight_staleness, most));
  }
  if (max_weight_staleness == 0) return;  // every sample is of the newest weights
  const std::optional<std::string> why_not = rl::why_not_off_policy(loss);
  TANDEM_USER_CHECK(!why_not, fmt::format("{}: {}", partial_rollout ? "--partial-rollout" : "--max-weight-staleness",
                                          why_not.value_or("")));
}

int64_t AsyncOptions::tokens_of_phase(int64_t max_new_tokens) const {
  return phase_tokens.value_or(std::max<int64_t>(max_new_tokens / 4, 1));
}

int64_t AsyncOptions::default_groups_at_once(int64_t rollout_batch_size) const {
  if (!partial_rollout) return rollout_batch_size;
  const int64_t num_batches = max_weight_staleness ? std::min<int64_t>(*max_weight_staleness + 1, 2) : 2;
  return base::Size(num_batches) * rollout_batch_size;
}

}  // namespace tandem::config
