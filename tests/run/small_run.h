// A training run of the golden model whose parts are tested one by one: 3 prompts of 4 completions a rollout, two
// optimizer steps.
#pragma once

#include <functional>
#include <string>

#include "base/files.h"
#include "run/run_log.h"
#include "run/train_inputs.h"
#include "session/run_memory.h"
#include "tests/base/temporary_directory.h"

namespace tandem::run {

constexpr int64_t kSmallPrompts = 3, kSmallCompletions = 4;

// The reward differs from sample to sample, so that there is something to learn.
inline config::TrainConfig small_config(const base::TemporaryDirectory& folder) {
  base::write_file_durably(folder / "reward.py",
                           "def reward(prompts, completions, **kwargs):\n"
                           "    return [float(len(c[0]['content']) % 5) for c in completions]\n");
  config::TrainConfig config;
  config.model.hf_checkpoint = "tests/golden/models/qwen3-tied";
  config.data.prompt_data = {"tests/golden/prompts/math_small.jsonl"};
  config.colocate = true;
  config.reward.custom_rm_path = {folder / "reward.py:reward"};
  config.rollout_batch_size = kSmallPrompts;
  config.rollout.n_samples_per_prompt = kSmallCompletions;
  config.rollout.max_response_len = 12;
  config.global_batch_size = 6;
  config.num_rollout = 2;
  config.optimizer.schedule.max_lr = 1e-3;
  config.output.save = folder / "run";
  config.output.use_tensorboard = false;
  return config;
}

// The inputs with loaded weights, the arena, and a log of the run directory.
class SmallRun {
 public:
  explicit SmallRun(const std::function<void(config::TrainConfig&)>& change = {})
      : inputs_(changed(small_config(folder_), change), {}),
        memory_(inputs_.config.memory, inputs_.plan, inputs_.session.device()) {
    inputs_.session.load_weights();
    inputs_.directory.create();
    log_ = std::make_unique<RunLog>(inputs_.directory, RunLog::Options{});
  }

  TrainInputs& inputs() { return inputs_; }
  session::RunMemory& memory() { return memory_; }
  RunLog& log() { return *log_; }

  // Returns the records that have `name`, in their order.
  std::vector<base::Json> records(const std::string& name) {
    log_->report().sync();
    std::vector<base::Json> result;
    std::istringstream lines(base::read_file(inputs_.directory.metrics_file()));
    for (std::string line; std::getline(lines, line);) {
      base::Json record = base::parse_json(line, "metrics.jsonl");
      if (record.contains(name)) result.push_back(std::move(record));
    }
    return result;
  }

 private:
  static config::TrainConfig changed(config::TrainConfig config,
                                     const std::function<void(config::TrainConfig&)>& change) {
    if (change) change(config);
    return config;
  }

  base::TemporaryDirectory folder_;
  TrainInputs inputs_;
  session::RunMemory memory_;
  std::unique_ptr<RunLog> log_;
};

}  // namespace tandem::run
