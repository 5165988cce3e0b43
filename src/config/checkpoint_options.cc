#include "config/checkpoint_options.h"

#include "base/check.h"
#include "base/size.h"

namespace tandem::config {

void CheckpointOptions::visit(options::Options& options) {
  const char* const group = "checkpoints";
  options
      .option(load, "load", group,
              "run directory to resume from, bit for bit; the same as --save, or another one, which stays as it is")
      .path()
      .does_not_affect_results()
      .of_one_command();
  options
      .option(ckpt_step, "ckpt-step", group,
              "checkpoint of --load to resume from, by its step; -1 or unset: the last one saved")
      .at_least(-1)
      .does_not_affect_results()
      .of_one_command();
  options
      .option(allow_fresh_start, "allow-fresh-start", group,
              "begin a new run where --load has no checkpoint yet, instead of refusing")
      .does_not_affect_results()
      .of_one_command();
  options
      .option(allow_changed_config, "allow-changed-config", group,
              "resume although flags or inputs differ from those of the checkpoint")
      .does_not_affect_results()
      .of_one_command()
      .used_if([this] { return !load.empty(); }, "--load");
  options
      .option(keep_latest, "keep-latest", group,
              "checkpoints that stay in checkpoints/: older ones are deleted; hf/ keeps all exports")
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
  options
      .option(on_save_error, "on-save-error", group,
              "what to do when a checkpoint cannot be written: stop, or continue and try again at the next interval")
      .one_of({"stop", "continue"})
      .does_not_affect_results();
  options
      .option(
          stop_grace_seconds, "stop-grace-seconds", group,
          "seconds that a training step in progress has to end after SIGTERM, SIGINT or SIGHUP; then it is abandoned")
      .at_least(0.0)
      .does_not_affect_results();
  options
      .option(max_skipped_steps, "max-skipped-steps", group,
              "stop after this many skipped optimizer steps in a row (gradient not finite or too large)")
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
  options
      .option(max_failed_rollouts, "max-failed-rollouts", group,
              "stop after this many rollouts in a row in which the reward failed on every sample, or "
              "--custom-advantage-path")
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
}

void CheckpointOptions::check() const {
  TANDEM_USER_CHECK(!load.empty() || !ckpt_step, "--ckpt-step: needs --load RUN");
  TANDEM_USER_CHECK(!load.empty() || !allow_fresh_start, "--allow-fresh-start: needs --load RUN");
}

}  // namespace tandem::config
