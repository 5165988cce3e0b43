#include "config/checkpoint_options.h"

#include "base/check.h"
#include "base/size.h"

namespace tandem::config {

void CheckpointOptions::visit(base::Options& options) {
  const char* const group = "checkpoints";
  options
      .option(load, "load", group,
              "go on with the run in this directory, bit for bit; the same as --save, or another to leave it as it is")
      .path()
      .does_not_affect_results();
  options.option(ckpt_step, "ckpt-step", group, "from this step instead of the last one saved")
      .at_least(0)
      .does_not_affect_results();
  options
      .option(allow_fresh_start, "allow-fresh-start", group,
              "where --load has saved nothing yet, begin a new run there instead of an error")
      .does_not_affect_results();
  options
      .option(allow_changed_config, "allow-changed-config", group,
              "go on although flags or inputs differ from those of the checkpoint")
      .does_not_affect_results();
  options.option(keep_latest, "keep-latest", group, "checkpoints/ keeps so many; hf/ keeps all")
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
  options
      .option(on_save_error, "on-save-error", group,
              "when a checkpoint cannot be written: stop, or continue and try again at the next interval")
      .one_of({"stop", "continue"})
      .does_not_affect_results();
  options
      .option(stop_grace_seconds, "stop-grace-seconds", group,
              "SIGTERM, SIGINT and SIGHUP: the training step in progress has so long to end; then it is abandoned")
      .at_least(0.0)
      .does_not_affect_results();
  options
      .option(max_skipped_steps, "max-skipped-steps", group,
              "stop after so many optimizer steps in a row that were skipped (gradient not finite or too large)")
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
  options
      .option(max_failed_rollouts, "max-failed-rollouts", group,
              "stop after so many rollouts in a row in which the reward failed on every sample")
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
}

void CheckpointOptions::check() const {
  TANDEM_USER_CHECK(!load.empty() || !ckpt_step, "--ckpt-step: needs --load RUN");
  TANDEM_USER_CHECK(!load.empty() || !allow_fresh_start, "--allow-fresh-start: needs --load RUN");
}

}  // namespace tandem::config
