// The folder that one run writes, and the names in it:
//   config.toml          the options of the run; `tandem VERB --config RUN/config.toml` repeats it
//   metrics.jsonl        one record per rollout, per optimizer step and per evaluation
//   memory_timeline.jsonl  what the device's memory was taken for, and at each step beside the plan
//   memory_trace.json    the end of that for chrome://tracing or Perfetto, when the run ends
//   log.txt              what the terminal showed
//   grader_output.txt    what reward functions printed
//   samples/             what was sampled: rollout_000001.jsonl, eval_NAME_000001.jsonl
//   tensorboard/         the metrics as an event file
//   wandb/, wandb_run_id  files of Weights & Biases, and the run's id there (--use-wandb)
//   view.html            the page of `tandem view`
//   checkpoints/         what the run goes on from (run/checkpoints.h)
//   hf/step_000100       a Hugging Face checkpoint after 100 rollouts
//   hf/latest            a symbolic link to the last of them
//   hf/best_000080       the weights that did best in evaluations, and hf/best, a symbolic link to them
//   fault/               what a run that had to stop wants to be looked at
//   lock                 held by the process that writes here
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"

namespace tandem::checkpoint {

// What may be in the folder before.
enum class RunFolder : uint8_t { kNew, kOverwrite, kGoOn };

class RunDirectory {
 public:
  // Looks, creates nothing. UserError when the folder holds anything (kNew), holds something that is not a run
  // (kOverwrite, kGoOn), or links where a run has files and folders (kGoOn); EnvironmentError when it cannot be written
  // or has less than `needed_bytes` free, which are `what_for`.
  RunDirectory(const std::string& path, RunFolder folder, int64_t needed_bytes, const std::string& what_for = "");

  // Makes the folder and hf/ in it, and takes the lock. What an earlier run left under the names above is removed
  // first, but for kGoOn. UserError when another process writes here.
  void create();

  // Sizes of the files that grow while a run goes on, by their path in the folder; they are durable to that size.
  std::map<std::string, int64_t> growing_files() const;
  // Takes back what was written after `step` rollouts were finished: those files to their sizes then, newer samples,
  // checkpoints and exports away, by the names that a run gives them; nothing else is touched. What is missing of them
  // is said as a warning.
  void cut_back(int64_t step, const std::map<std::string, int64_t>& file_bytes) const;

  const std::string& path() const { return path_; }
  std::string config_file() const { return path_ + "/config.toml"; }
  std::string metrics_file() const { return path_ + "/metrics.jsonl"; }
  std::string memory_file() const { return path_ + "/memory_timeline.jsonl"; }
  std::string memory_trace_file() const { return path_ + "/memory_trace.json"; }
  std::string log_file() const { return path_ + "/log.txt"; }
  std::string grader_output_file() const { return path_ + "/grader_output.txt"; }
  std::string samples_folder() const { return path_ + "/samples"; }
  std::string tensorboard_folder() const { return path_ + "/tensorboard"; }
  std::string wandb_run_id_file() const { return path_ + "/wandb_run_id"; }
  std::string fault_folder() const { return path_ + "/fault"; }
  std::string checkpoint(int64_t step) const;
  // Points hf/latest at checkpoint(step), in one rename.
  void set_latest(int64_t step) const;
  // The weights of the best evaluation, which was after `step` rollouts.
  std::string best(int64_t step) const;
  // Points hf/best at best(step), in one rename.
  void set_best(int64_t step) const;
  // Removes the best weights of earlier steps: no checkpoint that is left goes back to them.
  void remove_bests_before(int64_t step) const;

 private:
  // UserError where one of the names above is a link, or no file or folder as a run makes it.
  void check_names() const;
  std::vector<int64_t> best_steps() const;  // of those that are there

  std::string path_;
  RunFolder folder_;
  std::unique_ptr<base::DirectoryLock> lock_;
};

// The HF checkpoint of a run: of `step`, or the latest when step is negative. UserError when there is none; names those
// that exist.
std::string find_checkpoint(const std::string& run_path, int64_t step);

}  // namespace tandem::checkpoint
