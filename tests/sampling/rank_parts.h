// Parts of a rank that samples and grades without a model, started once for all tests: reward code, graders, a filter.
// Also prompts, and the words of a rollout that tests compare.
#pragma once

#include <gtest/gtest.h>

#include <list>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "report/sample_file.h"
#include "sampling/rollout_metrics.h"
#include "sampling/rollout_phase.h"
#include "tests/base/temporary_directory.h"

namespace tandem::sampling {

inline const std::string kModel = "tests/golden/models/qwen3-tied";
constexpr int kMostRanks = 8;
constexpr int64_t kCompletions = 3;

// Rewards that differ, fail, are logged and remove samples.
constexpr const char* kReward = R"(
def reward(prompts, completions, log_metric=None, log_extra=None, **kwargs):
    rewards = []
    for completion in completions:
        text = completion if isinstance(completion, str) else completion[0]["content"]
        if len(text) % 11 == 10:
            raise ValueError("a text of %d characters" % len(text))
        rewards.append(None if len(text) % 13 == 12 else float(len(text) % 3) / 7)
    if log_metric is not None:
        log_metric("letters", float(sum(len(str(c)) for c in completions)))
    if log_extra is not None:
        log_extra("first", [str(c)[:3] for c in completions])
    return rewards
)";

// The text worker, graders and filter of a rank; started once for all tests.
struct RankParts {
  explicit RankParts(const std::string& reward)
      : text(worker::default_worker_config(), kModel), graders(config(reward)), filter(nonzero_std(), {}, {}) {}

  static reward::ScorerConfig config(const std::string& reward) {
    reward::GraderConfig config;
    config.worker = worker::default_worker_config();
    config.custom_rm_path = reward;
    config.warn_of_missing_layers = false;
    config.limits.num_processes = 1;
    return {.sources = {{.name = "reward", .graders = config, .service = std::nullopt}}};
  }
  static config::DynamicSamplingOptions nonzero_std() {
    config::DynamicSamplingOptions options;
    options.filter_path = "nonzero_std";
    return options;
  }

  text::TextWorker text;
  reward::Scorer graders;
  GroupFilter filter;
};

inline std::vector<session::PromptLine> prompts(int64_t count) {
  std::vector<session::PromptLine> lines;
  for (int64_t i = 0; i < count; ++i) {
    const std::string text = "prompt " + std::to_string(i);
    std::vector<int32_t> tokens(static_cast<size_t>(1 + i * 5 % 7), static_cast<int32_t>(i));
    lines.push_back(
        {.record = {.line = i + 1, .prompt = text, .label = "2", .metadata = base::Json::object(), .tools = nullptr},
         .prompt = rl::make_prompt(std::move(tokens), text, "2")});
  }
  return lines;
}

// Returns samples with their grades and numbers, but for those that clocks decide.
inline std::string text_of(const Rollout& rollout) {
  base::Json all = base::Json::object();
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    all["samples"].push_back(
        report::sample_record(rollout.samples[i], &rollout.grades[i], report::SampleDetail::kFull));
    for (const auto& [name, values] : rollout.grades[i].metrics) all["logged"][std::to_string(i)][name] = values;
  }
  for (const auto& [name, value] : rollout_report(rollout, /*per_token=*/true, /*pass=*/std::nullopt)) {
    const bool is_engines = name.ends_with("/preemptions") || name.ends_with("/prefix_cache_hit_rate");
    if (!name.starts_with("perf/") && !is_engines) all["metrics"][name] = value;
  }
  all["first_failure"] = rollout.first_failure;
  return base::dump_json(all);
}

// Tests whose ranks have their parts.
class WithRankParts : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new base::TemporaryDirectory;
    base::write_file_durably(*folder_ / "reward.py", kReward);
    parts_ = new std::list<RankParts>;
    for (int rank = 0; rank < kMostRanks; ++rank) parts_->emplace_back(*folder_ / "reward.py:reward");
  }
  static void TearDownTestSuite() {
    delete parts_;
    delete folder_;
  }
  static RankParts& parts(int rank) { return *std::next(parts_->begin(), rank); }

 private:
  static inline base::TemporaryDirectory* folder_ = nullptr;
  static inline std::list<RankParts>* parts_ = nullptr;
};

}  // namespace tandem::sampling
