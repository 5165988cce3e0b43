// Detects that a run cannot learn, and why: no reward, no difference between rewards, no finished answer, no trained
// token, no learning rate, a filter that drops nearly all groups. Each fault has a key. It is counted as fault/<key> in
// every rollout or step in which it holds, and reported once, in a line with the likely cause and the flag to change;
// again only every kRepeatEvery rollouts, or when it comes back after kForgetAfter rollouts without it.
// docs/METRICS.md lists faults, keys and remedies.
//
// Counting looks at one rollout alone. A report needs evidence: four samples that are all wrong are chance, as are
// equal rewards in a run that has nearly solved its task. So a fault is reported once consecutive rollouts show it in
// enough samples; a run of 12 samples a rollout or more gets the report within two rollouts. A run that ends and has
// never had rewards that differ gets it however short it was.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "rl/rollout_signal.h"
#include "rl/sample.h"

namespace tandem::rl {

// The names that sentences use, and the properties that are normal in this run. Flags are written as the user gave
// them.
struct HealthSettings {
  std::string grader;                   // "--rm-type math", "--custom-rm-path reward.py:reward"
  bool asks_service = false;            // the grader is the service of --rm-url, and nothing else
  std::optional<double> lowest_reward;  // lowest reward of the grader, if it is known
  bool gives_only_zero = false;         // the grader is --rm-type none
  std::string generate;                 // "--custom-generate-function-path agent.py:run", which may ask for few tokens
  bool compares_group = true;           // the advantage of a sample depends on the rest of its group
  bool learns_from_teacher = false;     // rewards need not differ: a teacher tells completions apart (distillation.h)
  std::string advantages;               // what makes them in the place of an estimator: "--custom-advantage-path f"
  bool has_penalties = false;           // penalties change the rewards of the grader (reward_shaping.h)
  double temperature = 1.0;
  int64_t max_response_tokens = 0;  // 0: no limit
  bool context_may_cut = true;      // false: the context has room for the longest prompt and max_response_tokens
  bool ignore_eos = false;          // completions are meant to be cut
  bool can_stop = true;             // an EOS, a stop token or a stop text exists
  bool has_stop_texts = false;
  std::string eos_token_ids;          // "151645, 151643"
  bool template_opens_answer = true;  // false: rendered prompts end before the assistant's header
  bool template_told_not_to = false;  // --apply-chat-template-kwargs turns that header off
  int64_t num_prompts_dropped = 0;    // number of the num_prompts_read prompts that were longer than the limit
  int64_t num_prompts_read = 0;
  std::string filter;              // filter of dynamic sampling, as the user gave it
  bool has_filter_budget = false;  // --max-sampled-groups is given
  int64_t num_rollouts = 0;        // rollouts of the run
  // LearningHealth::differed_until() when the checkpoint was made, in a run that resumes from it.
  std::optional<int64_t> differed_until;
  double lr = 0.0;              // --lr
  int64_t lr_warmup_steps = 0;  // the first step of the warm-up has learning rate 0
  int64_t num_steps = 0;        // optimizer steps of the run
};

enum class Fault : uint8_t {
  kGraderAlwaysFails,
  kLossMaskZero,
  kEosNeverSampled,
  kCompletionsTruncated,
  kCompletionsEmpty,
  kTemplateOpensNoAnswer,
  kPromptsDropped,
  kAnswerNeverRight,
  kRewardsEqual,
  kGroupRewardsEqual,
  kTaskSolved,
  kAdvantagesZero,
  kLearningRateZero,
  kFilterDropsMost,
  kTooFewGroups,
};
// Returns the end of the metric's name: "fault/" + key.
const char* key(Fault fault);

// Counts the failed samples whose failure is not that of a grader of ours.
struct FailureCauses {
  int64_t num_not_made = 0;        // the generate function failed, so no grader was asked
  int64_t num_not_served = 0;      // the service of --rm-url could not be asked, could not answer, or refused
  int64_t num_not_applied_to = 0;  // the reward does not apply to the sample, which is no failure
};

// Faults of a rollout that its samples do not show.
struct RolloutFaults {
  FailureCauses causes;
  bool advantages_failed = false;  // --custom-advantage-path returned none, which the run has said
};

// Adds up consecutive rollouts that all show one fault.
struct Streak {
  int64_t first = 0, last = 0;  // from 0
  int64_t num_rollouts = 0;
  int64_t num_samples = 0, num_affected = 0;
  int64_t num_groups = 0, num_identical_groups = 0;
  int64_t num_truncated = 0, num_repetitive = 0, longest_tokens = 0;
  bool cuts_differ = false;  // some completions were cut at fewer than longest_tokens
  double lowest_reward = 0.0, highest_reward = 0.0;
  int64_t num_best = 0;  // samples with the highest reward
  bool all_advantages_zero = true;
  FailureCauses causes;  // for kGraderAlwaysFails
  // LearningHealth::differed_until() when it began, for cases about rewards.
  std::optional<int64_t> differed_until;
  // States whether some rollout before it did not show the case, for cases about completions; unset: not known, the run
  // has resumed.
  std::optional<bool> came_later;

  bool all_affected() const { return num_affected == num_samples; }
};

// Counts the groups of a rollout that a filter of dynamic sampling saw and kept.
struct FilterStats {
  int64_t num_sampled = 0;  // groups that the filter saw
  int64_t num_kept = 0, num_wanted = 0;
};

class LearningHealth {
 public:
  using Say = std::function<void(const std::string& line)>;
  using Counts = std::map<std::string, double>;  // "fault/<key>" to its count; a fault that does not hold is absent

  static constexpr int64_t kRepeatEvery = 50;
  static constexpr int64_t kForgetAfter = 10;
  // A filter is reported as wasteful from this many sampled groups for each kept one.
  static constexpr int64_t kWastefulFilter = 10;

  // `warn` gets the faults that a run should not continue with. `inform` gets the news that every reward is the best
  // one, which is success unless it is so from the start and in many samples.
  LearningHealth(HealthSettings settings, Say warn, Say inform);
  // Sends both to the log.
  explicit LearningHealth(HealthSettings settings);

  // It is called after rewards and advantages of a rollout are known, before it is trained on. `rollout` counts from 0.
  Counts observe_rollout(int64_t rollout, std::span<const Sample* const> samples, const RolloutFaults& faults = {});
  // It is called after a rollout of dynamic sampling.
  Counts observe_filter(int64_t rollout, const FilterStats& stats);
  // The last rollout whose rewards were not all equal, or all equal and higher than all since; part of a checkpoint.
  // nullopt: none was.
  std::optional<int64_t> differed_until() const { return differed_until_; }
  // It is called after an optimizer step with its samples and its learning rate. `step` counts from 0 over the run.
  Counts observe_step(int64_t step, std::span<const Sample* const> samples, double lr);

 private:
  struct AlertState {
    std::optional<int64_t> last_held, last_said;
    bool said = false;  // reported since the fault last came (back)
  };
  struct Case {
    Streak stretch;
    AlertState voice;
  };

  // Records that the fault holds in this rollout, for `num_affected` of `num_samples`. Returns its streak, which
  // includes the rollout.
  const Streak& hold(Fault fault, int64_t rollout, const RolloutStats& signal, int64_t num_samples,
                     int64_t num_affected);
  void extend_streak(Fault fault, int64_t at);
  void say(Fault fault, int64_t at, const std::string& line, const Say& to);
  void see_graders(int64_t rollout, const RolloutStats& signal, const FailureCauses& causes, Counts& counts);
  void see_completions(int64_t rollout, const RolloutStats& signal, Counts& counts);
  void see_prompts(int64_t rollout, const RolloutStats& signal, Counts& counts);
  void see_rewards(int64_t rollout, const RolloutStats& signal, bool advantages_failed, Counts& counts);
  void say_solved(int64_t rollout, bool from_the_start, bool are_many);
  void update_base_rate(const RolloutStats& signal);
  bool has_fallen(const RolloutStats& signal) const;
  void end_equal_stretch();
  std::optional<bool> came_later(bool was_well) const;
  Fault reward_fault(double lowest, double highest) const;
  Fault flat_fault() const;
  bool is_significant() const;

  HealthSettings settings_;
  bool saw_the_start_ = false;  // this object saw rollout 0
  bool has_warned_of_start_ = false;
  bool have_ended_ = false;  // most completions of some rollout ended by themselves
  bool have_text_ = false;   // enough completions of some rollout had text
  std::optional<int64_t> differed_until_;
  Say warn_, inform_;
  std::map<Fault, Case> cases_;
  // Counts rollouts in which no rewards differ; all of them together decide which fault that is.
  Streak flat_;
  // Once rewards have differed, these count the groups before flat_: the share of equal ones is their chance in this
  // run.
  int64_t num_groups_seen_ = 0, num_equal_groups_seen_ = 0;
  std::optional<double> highest_reward_seen_;
};

}  // namespace tandem::rl
