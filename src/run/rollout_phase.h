// One rollout: completions of some prompts, scored. Groups go to the graders as they end, while the tail still decodes;
// what comes back is in sample order, whatever the order of arrival.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "report/report.h"
#include "rl/sample.h"
#include "rollout/engine.h"
#include "run/failure_reward.h"
#include "run/prompt_set.h"
#include "text/graders.h"
#include "text/text_worker.h"

namespace tandem::run {

struct RolloutRequest {
  std::vector<const PromptLine*> prompts;
  int64_t n_samples_per_prompt = 1;
  rl::SamplingParams sampling;
  // Sample ids are [first_sample_id, + prompts x n), those of a prompt side by side: they name the random streams.
  uint64_t first_sample_id = 0;
  bool skip_special_tokens = false;
  config::FailureReward failure_reward;
  std::string title;  // of the live line: "rollout 3/200"
};

struct Rollout {
  std::vector<rl::Sample> samples;  // in sample order
  std::vector<text::Grade> grades;  // one a sample; empty without graders
  rollout::EngineStats stats;
  bool is_sampled = false;    // by the engine, with the weights that the trainer has: not read from a file
  double seconds = 0.0;       // with rewards
  int64_t num_failed = 0;     // samples whose grading failed
  int64_t num_dropped = 0;    // of those: without a reward
  int64_t num_repeated = 0;   // samples that were graded again after their grader was lost
  int64_t num_restarts = 0;   // graders that were replaced meanwhile
  int64_t num_unnamed = 0;    // numbers and columns of rewards that limit_reward_names() left out
  std::string first_failure;  // "sample 12: ValueError: ..."

  // Sets num_failed, num_dropped and first_failure from samples and grades.
  void count_failures();
  bool all_failed() const { return num_failed > 0 && num_failed == static_cast<int64_t>(samples.size()); }

  std::vector<const rl::Sample*> views() const;
};

class RolloutPhase {
 public:
  // Both borrowed.
  RolloutPhase(rollout::Engine& engine, text::TextWorker& text) : engine_(engine), text_(text) {}

  // nullopt when the run was asked to stop: the groups in flight are dropped. Without graders (null) the samples have
  // no reward. `report` shows the live line.
  std::optional<Rollout> run(const RolloutRequest& request, text::Graders* graders, report::Report& report);

 private:
  std::optional<rl::Group> next_group(const RolloutRequest& request, int64_t num_done, report::Report& report);
  static bool wait_for_rewards(const RolloutRequest& request, text::Graders& graders, report::Report& report);
  void take(const RolloutRequest& request, rl::Group group, Rollout& rollout, text::Graders* graders);
  std::vector<std::string> decode(const std::vector<std::vector<int32_t>>& tokens, bool skip_special_tokens);
  void warn_of_names(const Rollout& rollout, const std::string& title);

  rollout::Engine& engine_;
  text::TextWorker& text_;
  bool names_are_said_ = false;
};

// Reward code names what it returns besides the reward, logs or adds as a column, and each name is a series of its own
// in metrics and samples. Of a rollout the first kMaxRewardNames stay, in sample order; returns how many values and
// columns under other names were taken out.
constexpr size_t kMaxRewardNames = 256;
int64_t limit_reward_names(std::vector<text::Grade>& grades);

}  // namespace tandem::run
