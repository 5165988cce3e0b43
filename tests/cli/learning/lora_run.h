// Runs of adapters through the program, and what is read of one: shared by the tests of adapters.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {

inline Arguments operator+(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

inline double number(const base::Json& record, const std::string& name) { return record.at(name).get<double>(); }

inline std::string adapter_of(const std::string& run) {
  return base::read_file(run + "/hf/latest/adapter_model.safetensors");
}

class LoraRun : public testing::Test {
 protected:
  LoraRun() : reward_(write_reward(folder_)) {}
  Arguments words(const std::string& save, const Arguments& more = {}) const {
    return with_flag(
        with_custom_reward(train_arguments(save, Arguments{"--lora-rank", "4", "--lora-alpha", "6"} + more), reward_),
        "--lr", "2e-2");
  }
  base::TemporaryDirectory folder_;
  std::string reward_;
};

inline std::string everything_of(const std::string& run, int last) {
  const std::string shard =
      base::read_file(run + "/checkpoints/step_00000" + std::to_string(last) + "/shard_00000.safetensors");
  return timeless_metrics(run) + adapter_of(run) + shard;
}

// Returns log-probs of given tokens under --hf-checkpoint.
inline std::vector<double> scores(const std::string& model, const base::TemporaryDirectory& folder,
                                  const Arguments& more = {}) {
  base::write_file_durably(folder / "tokens.jsonl",
                           "{\"tokens\": [5, 9, 300, 41, 7, 7, 250, 12, 471, 90, 33], \"prompt_length\": 1}\n");
  const std::string output = folder / "scores.jsonl";
  const Captured result =
      run(Arguments{"score", "--hf-checkpoint", model, "--prompt-data", folder / "tokens.jsonl", "--output", output} +
          more);
  EXPECT_EQ(result.code, 0) << result.err;
  return json_lines(output).at(0).at("log_probs").get<std::vector<double>>();
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b.at(i)));
  return largest;
}

}  // namespace tandem::cli
