#include "run/read_paths.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "base/check.h"
#include "data/lines.h"
#include "evaluation/eval_sets.h"
#include "model/peft.h"
#include "report/json_output.h"

namespace tandem::run {

namespace {

class Paths {
 public:
  void add(const std::string& flag, const std::string& path) {
    if (!path.empty()) paths_.push_back({.flag = flag, .path = path});
  }
  // Adds a model's directory; of an adapter its base too.
  void add_model(const std::string& flag, const std::string& directory) {
    add(flag, directory);
    try {
      if (directory.empty() || !model::is_adapter_directory(directory)) return;
      add(fmt::format("{} {}: its base", flag, directory), model::read_adapter_config(directory).base);
    } catch (const std::exception&) {
      // A model that cannot be read is refused where the run reads it.
    }
  }
  // Adds a file of data, PATH or PATH@[a:b].
  void add_data(const std::string& flag, const std::string& path) { add(flag, data::parse_data_path(path).file); }
  void add_prompt_data(const std::vector<std::string>& data) {
    for (const std::string& path : data) add_data("--prompt-data", path);
  }
  // Adds the file of FILE.py:function; a name without a colon is built in.
  void add_function(const std::string& flag, const std::string& function) {
    const size_t colon = function.rfind(':');
    if (colon != std::string::npos) add(flag, function.substr(0, colon));
  }
  void add_reward(const config::RewardOptions& reward) {
    for (const std::string& function : reward.custom_rm_path) add_function("--custom-rm-path", function);
    add_model("--rm-model", reward.rm_model);
  }
  void add_eval_sets(const config::EvalOptions& eval) {
    add("--eval-config", eval.eval_config);
    const char* const flag = eval.eval_config.empty() ? "--eval-prompt-data" : "--eval-config";
    for (const config::EvalSet& set : evaluation::read_eval_sets(eval)) {
      add_data(flag, set.path);
      for (const std::string& function : set.custom_rm_path) add_function(flag, function);
    }
  }
  std::vector<ReadPath> take() { return std::move(paths_); }

 private:
  std::vector<ReadPath> paths_;
};

}  // namespace

std::vector<ReadPath> read_paths(const config::TrainConfig& config) {
  Paths paths;
  paths.add_model("--hf-checkpoint", config.model.hf_checkpoint);
  paths.add_model("--ref-load", config.loss.ref_load);
  for (const config::LossOptions::Teacher& teacher : config.loss.opd_teachers())
    paths.add_model("--opd-teacher-load", teacher.directory);
  paths.add_prompt_data(config.data.prompt_data);
  paths.add_eval_sets(config.eval);
  paths.add_reward(config.reward);
  paths.add_function("--custom-generate-function-path", config.custom_generate.function);
  paths.add_function("--custom-advantage-path", config.loss.custom_advantage_path);
  paths.add_function("--dynamic-sampling-filter-path", config.dynamic_sampling.filter_path);
  paths.add("--load-debug-rollout-data", config.load_debug_rollout_data);
  if (!config.async.replay_schedule.empty())
    paths.add("--replay-schedule", config.async.replay_schedule + "/schedule.jsonl");
  paths.add("--load", config.checkpoints.load);
  return paths.take();
}

std::vector<ReadPath> read_paths(const config::SftConfig& config) {
  Paths paths;
  paths.add_model("--hf-checkpoint", config.model.hf_checkpoint);
  paths.add_model("--ref-load", config.ref_load);
  paths.add_prompt_data(config.data.prompt_data);
  paths.add_eval_sets(config.eval);
  paths.add("--load", config.checkpoints.load);
  return paths.take();
}

std::vector<ReadPath> read_paths(const config::EvalConfig& config) {
  Paths paths;
  paths.add_model("--hf-checkpoint", config.model.hf_checkpoint);
  paths.add_eval_sets(config.eval);
  paths.add_reward(config.reward);
  paths.add_function("--custom-generate-function-path", config.custom_generate.function);
  return paths.take();
}

std::vector<ReadPath> read_paths(const config::GenerateConfig& config) {
  Paths paths;
  paths.add_model("--hf-checkpoint", config.model.hf_checkpoint);
  paths.add_prompt_data(config.data.prompt_data);
  return paths.take();
}

std::vector<ReadPath> read_paths(const config::ScoreConfig& config) {
  Paths paths;
  paths.add_model("--hf-checkpoint", config.model.hf_checkpoint);
  paths.add_data("--prompt-data", config.prompt_data);
  return paths.take();
}

void check_keeps(const checkpoint::RunDirectory& directory, const std::vector<ReadPath>& read) {
  for (const ReadPath& each : read) {
    const std::string removed = directory.removed_with(each.path);
    TANDEM_USER_CHECK(removed.empty(),
                      fmt::format("{} {}: is part of {}, which is removed before a new run begins in --save {}; give "
                                  "another --save, or copy it and name the copy",
                                  each.flag, each.path, removed, directory.path()));
  }
}

void check_output(const std::string& output, const std::vector<ReadPath>& read, const config::RunMode& mode) {
  std::vector<std::string> inputs = mode.config_files;
  for (const ReadPath& each : read) inputs.push_back(each.path);
  report::check_output(output, inputs);
}

}  // namespace tandem::run
