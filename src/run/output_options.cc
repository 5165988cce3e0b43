#include "run/output_options.h"

namespace tandem::run {

void OutputOptions::visit(base::Options& options) {
  const char* const group = "output";
  options.option(save, "save", group, "run directory: metrics, samples, logs, checkpoints")
      .required()
      .path()
      .changes_no_number();
  options.option(save_interval, "save-interval", group, "write a checkpoint every so many rollouts, besides the last")
      .at_least(1)
      .changes_no_number();
  options.option(overwrite, "overwrite", group, "replace the run that --save holds").changes_no_number();
  options.option(use_tensorboard, "use-tensorboard", group, "write the metrics as a TensorBoard event file too")
      .changes_no_number();
  options.option(sample_dump_interval, "sample-dump-interval", group, "write samples/ every so many rollouts; 0: never")
      .at_least(0)
      .changes_no_number();
  options
      .option(save_debug_rollout_data, "save-debug-rollout-data", group,
              "file for all data of a rollout, tokens and log-probs too; {rollout_id} in it is replaced")
      .path()
      .changes_no_number();
  options.option(log_passrate, "log-passrate", group, "report pass@k of the training groups").changes_no_number();
}

bool OutputOptions::is_save_step(int64_t step, int64_t num_steps) const {
  return step == num_steps || (save_interval && step % *save_interval == 0);
}

int64_t OutputOptions::num_checkpoints(int64_t num_steps) const {
  if (!save_interval) return 1;
  return num_steps / *save_interval + (num_steps % *save_interval != 0 ? 1 : 0);
}

}  // namespace tandem::run
