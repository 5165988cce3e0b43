// Arguments of small runs of the tiny model, and what they need: rewards, copies of the model to spoil.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "tests/base/temporary_directory.h"

namespace tandem::cli {

using Arguments = std::vector<std::string>;

inline const std::string kModel = "tests/golden/models/qwen3-tied";
inline const std::string kPrompts = "tests/golden/prompts/math_small.jsonl";

inline Arguments train_arguments(const std::string& save, const Arguments& more = {}) {
  Arguments arguments = {"train",
                         "--colocate",
                         "--hf-checkpoint",
                         kModel,
                         "--prompt-data",
                         kPrompts,
                         "--rm-type",
                         "math",
                         "--rollout-batch-size",
                         "3",
                         "--n-samples-per-prompt",
                         "4",
                         "--global-batch-size",
                         "6",
                         "--num-rollout",
                         "2",
                         "--rollout-max-response-len",
                         "12",
                         "--lr",
                         "1e-3",
                         "--no-use-tensorboard",
                         "--save",
                         save};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// The value of a flag that is there, or the flag added.
inline Arguments with_flag(Arguments arguments, const std::string& flag, const std::string& value) {
  const auto at = std::find(arguments.begin(), arguments.end(), flag);
  if (at == arguments.end()) {
    arguments.insert(arguments.end(), {flag, value});
  } else {
    *(at + 1) = value;
  }
  return arguments;
}

// A function `reward`, in `name` of the folder; returns what --custom-rm-path takes.
inline std::string write_reward(const base::TemporaryDirectory& folder, const std::string& name,
                                const std::string& body) {
  base::write_file_durably(folder / name, "def reward(prompts, completions, **kwargs):\n    " + body + "\n");
  return folder / name + ":reward";
}

// A reward that differs from sample to sample, so that there is something to learn from a model that knows nothing.
inline std::string write_reward(const base::TemporaryDirectory& folder) {
  return write_reward(folder, "reward.py", "return [float(len(c[0]['content']) % 5) for c in completions]");
}

inline Arguments with_custom_reward(Arguments arguments, const std::string& path) {
  const auto at = std::find(arguments.begin(), arguments.end(), "--rm-type");
  *at = "--custom-rm-path";
  *(at + 1) = path;
  return arguments;
}

inline std::vector<base::Json> json_lines(const std::string& path) {
  std::vector<base::Json> result;
  std::istringstream lines(base::read_file(path));
  for (std::string line; std::getline(lines, line);) result.push_back(base::parse_json(line, path));
  return result;
}

inline std::string copy_model(const base::TemporaryDirectory& folder, const std::string& name) {
  namespace fs = std::filesystem;
  fs::copy(kModel, folder / name);
  for (const auto& entry : fs::directory_iterator(folder / name)) {
    fs::permissions(entry, fs::perms::owner_write, fs::perm_options::add);
  }
  return folder / name;
}

inline void replace_in_file(const std::string& path, const std::string& from, const std::string& to) {
  std::string text = base::read_file(path);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  base::write_file_durably(path, text.replace(at, from.size(), to));
}

}  // namespace tandem::cli
