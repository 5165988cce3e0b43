// The folder that one run writes, and the names in it:
//   config.toml          the options of the run; `tandem VERB --config RUN/config.toml` repeats it
//   metrics.jsonl        one record per rollout, per optimizer step and per evaluation
//   log.txt              what the terminal showed
//   grader_output.txt    what reward functions printed
//   samples/             what was sampled: rollout_000001.jsonl, eval_NAME_000001.jsonl
//   tensorboard/         the metrics as an event file
//   hf/step_000100       a Hugging Face checkpoint after 100 rollouts
//   hf/latest            a symbolic link to the last of them
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::run {

class RunDirectory {
 public:
  // Looks, creates nothing. UserError when the folder holds anything and `overwrite` is false, or holds something that
  // is not a run; EnvironmentError when it cannot be written or has less than `needed_bytes` free.
  RunDirectory(const std::string& path, bool overwrite, int64_t needed_bytes);

  // Makes the folders; what an earlier run left under the names above is removed first (only with `overwrite`).
  void create() const;

  const std::string& path() const { return path_; }
  std::string config_file() const { return path_ + "/config.toml"; }
  std::string metrics_file() const { return path_ + "/metrics.jsonl"; }
  std::string log_file() const { return path_ + "/log.txt"; }
  std::string grader_output_file() const { return path_ + "/grader_output.txt"; }
  std::string samples_folder() const { return path_ + "/samples"; }
  std::string tensorboard_folder() const { return path_ + "/tensorboard"; }
  std::string checkpoint(int64_t step) const;
  // Points hf/latest at checkpoint(step), in one rename.
  void set_latest(int64_t step) const;

 private:
  std::string path_;
};

// The HF checkpoint of a run: of `step`, or the latest when step is negative. UserError when there is none; names those
// that exist.
std::string find_checkpoint(const std::string& run_path, int64_t step);

}  // namespace tandem::run
