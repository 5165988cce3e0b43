#include "config/output_options.h"

#include "base/size.h"

#include <fmt/format.h>

namespace tandem::config {

void OutputOptions::visit_run(options::Options& options) {
  const char* const group = "output";
  options.option(save, "save", group, "run directory: metrics, samples, logs, checkpoints")
      .required()
      .path()
      .does_not_affect_results();
  options
      .option(
          save_interval, "save-interval", group,
          fmt::format("rollouts (sft: steps) between two checkpoints with an export, besides those at the end; unset: "
                      "checkpoints/ every {}, of which --keep-latest stay, and hf/ at the end alone",
                      default_save_interval))
      .at_least(1)
      .at_most(base::kMaxCount)
      .does_not_affect_results();
  options.option(overwrite, "overwrite", group, "replace the run that --save holds")
      .does_not_affect_results()
      .of_one_command();
  options.option(use_tensorboard, "use-tensorboard", group, "write the metrics as a TensorBoard event file too")
      .does_not_affect_results();
  trackers.visit(options);
}

void OutputOptions::visit(options::Options& options) {
  visit_run(options);
  const char* const group = "output";
  options
      .option(sample_dump_interval, "sample-dump-interval", group,
              "rollouts between two files of samples/; 0: write none")
      .at_least(0)
      .does_not_affect_results();
  options
      .option(save_debug_rollout_data, "save-debug-rollout-data", group,
              "file for all data of a rollout, with tokens and log-probs; {rollout_id} in its name is replaced")
      .path()
      .does_not_affect_results();
  options
      .option(
          save_best, "save-best", group,
          "metric of evaluations, eval/NAME or eval/NAME-pass@K: RUN/hf/best are the weights with its highest value")
      .does_not_affect_results();
  options.option(log_passrate, "log-passrate", group, "report pass@k of the training groups").does_not_affect_results();
}

std::optional<SavedParts> OutputOptions::parts_due(int64_t step, int64_t num_steps) const {
  if (step == num_steps || (save_interval && step % *save_interval == 0)) return SavedParts::kBoth;
  if (!save_interval && step % default_save_interval == 0) return SavedParts::kCheckpoint;
  return std::nullopt;
}

int64_t OutputOptions::num_checkpoints(int64_t num_steps, int64_t begin) const {
  if (begin >= num_steps) return 0;
  const int64_t interval = save_interval.value_or(default_save_interval);
  return num_steps / interval - begin / interval + (num_steps % interval != 0 ? 1 : 0);
}

int64_t OutputOptions::num_exports(int64_t num_steps, int64_t begin) const {
  if (save_interval) return num_checkpoints(num_steps, begin);
  return begin < num_steps ? 1 : 0;
}

}  // namespace tandem::config
