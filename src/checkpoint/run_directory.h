// The folder that one run writes, and the names in it:
//   config.toml          the options of the run; `tandem VERB --config RUN/config.toml` repeats it
//   metrics.jsonl        one record per rollout, per optimizer step and per evaluation
//   memory_timeline.jsonl  the device's memory by tag over time, and at each step with the plan
//   memory_trace.json    the end of that for chrome://tracing or Perfetto, when the run ends
//   log.txt              the lines of the terminal
//   grader_output.txt    the output of reward functions
//   samples/             the samples: rollout_000001.jsonl, eval_NAME_000001.jsonl
//   tensorboard/         the metrics as an event file
//   wandb/               files of Weights & Biases (--use-wandb)
//   NAME_run_id          the run's id in a tracker: wandb, trackio or mlflow
//   view.html            the page of `tandem view`
//   checkpoints/         the checkpoints to resume from (checkpoint/checkpoints.h)
//   hf/step_000100       a Hugging Face checkpoint after 100 rollouts
//   hf/latest            a symbolic link to the last of them
//   hf/best_000080       the weights that did best in evaluations, and hf/best, a symbolic link to them
//   fault/               evidence that a run leaves when it has to stop
//   lock                 held by the process that writes here
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"

namespace tandem::checkpoint {

// Selects what the folder may hold before: nothing (kNew); a run, which is replaced (kOverwrite) or goes on (kGoOn); or
// a run of which nothing is saved, which begins again (kFresh, --allow-fresh-start).
enum class RunFolder : uint8_t { kNew, kOverwrite, kFresh, kGoOn };

class RunDirectory {
 public:
  // Checks the folder and creates nothing. Throws UserError when the folder holds anything (kNew), holds something that
  // is not a run (all others), exports of a run whose checkpoints/ was removed (kFresh), or links where a run has files
  // and folders (kGoOn); EnvironmentError when it cannot be written or has less than `needed_bytes` free, whose use is
  // `what_for`. Counted as free is what create() removes, and with kGoOn what cut_back(resumed_step) removes.
  RunDirectory(const std::string& path, RunFolder folder, int64_t needed_bytes, const std::string& what_for = "",
               int64_t resumed_step = 0);

  // Creates the folder, checkpoints/ and hf/ in it, and takes the lock. Except with kGoOn, files of an earlier run
  // under the names above are removed first. Removes nothing and throws EnvironmentError when another process writes
  // here, UserError when one has begun a run here (kNew) or saved a checkpoint (kFresh) since the constructor looked,
  // and for exports as the constructor does (kFresh).
  void create();
  // Throws EnvironmentError as create() does when another process writes here, and changes nothing.
  void check_not_written() const { base::DirectoryLock::check_free(path_); }

  // Returns which of those names create() would remove with that file or folder, which lies there or is reached through
  // it: "RUN/hf" for "RUN/hf/latest". "" if it stays.
  std::string removed_with(const std::string& path) const;

  // Returns the sizes of the files that grow during a run, by their path in the folder; they are durable to that size.
  std::map<std::string, int64_t> growing_files() const;
  // Undoes everything written after `step` rollouts were finished: those files get their sizes of then; newer samples,
  // checkpoints and exports are removed, by the names that a run gives them; nothing else is touched. Missing ones are
  // reported as a warning.
  void cut_back(int64_t step, const std::map<std::string, int64_t>& file_bytes) const;

  const std::string& path() const { return path_; }
  std::string config_file() const { return path_ + "/config.toml"; }
  std::string metrics_file() const { return path_ + "/metrics.jsonl"; }
  std::string memory_file() const { return path_ + "/memory_timeline.jsonl"; }
  std::string schedule_file() const { return path_ + "/schedule.jsonl"; }
  std::string memory_trace_file() const { return path_ + "/memory_trace.json"; }
  std::string log_file() const { return path_ + "/log.txt"; }
  std::string grader_output_file() const { return path_ + "/grader_output.txt"; }
  std::string samples_folder() const { return path_ + "/samples"; }
  std::string tensorboard_folder() const { return path_ + "/tensorboard"; }
  // Returns the file that keeps the run's id in a tracker; `key` is "wandb", "trackio" or "mlflow".
  std::string tracker_run_id_file(const std::string& key) const { return path_ + "/" + key + "_run_id"; }
  std::string fault_folder() const { return path_ + "/fault"; }
  std::string checkpoint(int64_t step) const;
  // Makes hf/latest point to checkpoint(step), in one rename.
  void set_latest(int64_t step) const;
  // Returns the path of the weights of the best evaluation, which was after `step` rollouts.
  std::string best(int64_t step) const;
  // Makes hf/best point to best(step), in one rename.
  void set_best(int64_t step) const;
  // Removes the best weights of earlier steps, when no remaining checkpoint refers to them.
  void remove_bests_before(int64_t step) const;

 private:
  // Throws UserError if one of the names above is a link, or no file or folder as a run makes it.
  void check_names() const;
  // Throws UserError if the folder has exports and no checkpoints/, which every run makes when it begins: somebody has
  // removed it, and kept the exports.
  void check_exports_may_go() const;
  // Throws UserError if another process has worked here since the constructor looked, and as check_exports_may_go().
  void check_nothing_came() const;
  // Returns whether create() removes what is there.
  bool replaces() const { return folder_ == RunFolder::kOverwrite || folder_ == RunFolder::kFresh; }
  std::vector<int64_t> best_steps() const;  // existing ones
  // Returns the samples and the weights that were written after `step`.
  std::vector<std::string> written_after(int64_t step) const;
  // Returns how much space is free in addition once create(), and cut_back(step) in a run that goes on, are done.
  int64_t replaced_bytes(int64_t step) const;

  std::string path_;
  RunFolder folder_;
  std::unique_ptr<base::DirectoryLock> lock_;
};

// Returns the HF checkpoint of a run: that of `step`, or the latest when step is negative, as a path without links that
// names it also when there is a later one. Throws UserError, with those that exist, when there is none.
std::string find_checkpoint(const std::string& run_path, int64_t step);

}  // namespace tandem::checkpoint
