// One rollout: completions of some prompts, scored. Groups go to the graders as they end, while the tail still decodes;
// what comes back is in sample order, whatever the order of arrival.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "report/report.h"
#include "rl/sample.h"
#include "rollout/engine.h"
#include "run/failure_reward.h"
#include "run/group_filter.h"
#include "run/prompt_set.h"
#include "text/generators.h"
#include "text/scorer.h"
#include "text/text_worker.h"

namespace tandem::run {

// A rollout that goes on sampling until enough groups pass a filter (docs/DYNAMIC_SAMPLING.md).
struct DynamicSampling {
  GroupFilter& filter;
  std::string filter_name;                         // as the user gave it
  std::function<const PromptLine*()> next_prompt;  // of the group that is drawn next
  int64_t num_groups = 0;                          // to be kept
  int64_t groups_at_once = 0;                      // kept or under way, at least num_groups
  int64_t max_dropped = 0;                         // in a row, then the run ends: nothing passes
};

// Samples that the user's function makes in several turns (run/turn_sampler.h).
struct CustomGeneration {
  text::Generators& processes;
  std::string function;  // FILE.py:function
  std::string metadata_key;
  int64_t context_tokens = 0;  // the model's
  bool is_evaluation = false;
};

// Failures of that function, among those of grades (Grade::reason_class).
inline constexpr const char* kGenerateFailure = "generate";

struct RolloutRequest {
  std::vector<const PromptLine*> prompts;  // of all groups; none with `dynamic`
  std::optional<DynamicSampling> dynamic = {};
  int64_t n_samples_per_prompt = 1;
  rl::SamplingParams sampling;
  // Sample ids are [first_sample_id, + prompts x n), those of a prompt side by side: they name the random streams.
  uint64_t first_sample_id = 0;
  bool skip_special_tokens = false;
  config::FailureReward failure_reward;
  std::optional<CustomGeneration> generation = {};  // unset: the engine alone makes samples
  std::string title;                                // of the live line: "rollout 3/200"
};

// What dynamic sampling did for one rollout. The first numbers are about the groups up to the last one taken, which are
// the same whenever the run is repeated; the others depend on what was under way when it was full.
struct FilteredGroups {
  int64_t num_groups = 0;
  int64_t num_judged = 0;                  // by the filter: groups with a reward
  std::map<std::string, int64_t> dropped;  // by reason
  int64_t num_failures = 0;                // of the filter: groups that it could not judge
  std::string first_failure;
  double mean_reward = 0.0;  // of all samples with a reward, dropped groups too
  bool has_mean_reward = false;

  int64_t num_excess = 0;   // groups drawn behind the last one taken
  int64_t num_aborted = 0;  // of those: had not ended

  int64_t num_dropped() const;
  bool always_failed() const { return num_judged > 0 && num_failures == num_judged; }
};

struct Rollout {
  std::vector<rl::Sample> samples;  // in sample order
  std::vector<text::Grade> grades;  // one a sample; empty without graders
  rollout::EngineStats stats;
  bool is_sampled = false;            // by the engine, with the weights that the trainer has: not read from a file
  double seconds = 0.0;               // with rewards
  int64_t num_failed = 0;             // samples whose grading failed
  int64_t num_dropped = 0;            // of those: without a reward
  int64_t num_repeated = 0;           // samples that were graded again after their grader was lost
  int64_t num_restarts = 0;           // graders that were replaced meanwhile
  int64_t num_generate_restarts = 0;  // the same of processes of the generate function,
  int64_t num_generate_repeated = 0;  // and of samples that began again
  int64_t num_unnamed = 0;            // numbers and columns of rewards that limit_reward_names() left out
  std::string first_failure;          // "sample 12: ValueError: ..."
  std::optional<FilteredGroups> filtered = {};  // of dynamic sampling

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
  // no reward. `report` shows the live line. UserError when dynamic sampling finds nothing that passes.
  std::optional<Rollout> run(const RolloutRequest& request, text::Scorer* graders, report::Report& report);

 private:
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
