// Says when a run cannot learn, and why: no reward, no difference between rewards, no finished answer, no trained
// token, no learning rate, a filter that drops nearly all groups. Each case has a key. It is counted as fault/<key> in
// every rollout or step in which it holds, and said once in a line with the likely cause and the flag to change; again
// only every kRepeatEvery rollouts, or when it comes back after kForgetAfter rollouts without it. docs/METRICS.md
// lists cases, keys and remedies.
//
// Counting looks at one rollout alone. Speaking needs evidence: four samples that are all wrong are chance, as are
// equal rewards in a run that has nearly solved its task. So a case is said once a stretch of consecutive rollouts
// shows it in enough samples; a run of 12 samples a rollout or more hears of it within two rollouts. A run that ends
// and has never had rewards that differ hears of it however short it was.
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

// What sentences name, and what is normal in this run. Flags are written as the user gave them.
struct HealthSettings {
  std::string grader;                   // "--rm-type math", "--custom-rm-path reward.py:reward"
  std::optional<double> lowest_reward;  // that the grader gives, where it is known
  bool compares_group = true;           // the advantage of a sample depends on the others of its group
  bool has_penalties = false;           // something beside the grader changes rewards (reward_shaping.h)
  double temperature = 1.0;
  int64_t max_response_tokens = 0;  // 0: no such limit
  bool ignore_eos = false;          // completions are meant to be cut
  bool can_stop = true;             // an EOS, a stop token or a stop text exists
  bool has_stop_texts = false;
  std::string eos_token_ids;          // "151645, 151643"
  bool template_opens_answer = true;  // false: rendered prompts end before the assistant's header
  bool template_told_not_to = false;  // --apply-chat-template-kwargs asks for that
  int64_t num_prompts_dropped = 0;    // of num_prompts_read, longer than the limit
  int64_t num_prompts_read = 0;
  std::string filter;              // of dynamic sampling, as the user gave it
  bool has_filter_budget = false;  // --max-sampled-groups is given
  int64_t num_rollouts = 0;        // of the run
  // Of a run that resumes: LearningHealth::differed_until() when its checkpoint was made.
  std::optional<int64_t> differed_until;
  double lr = 0.0;              // --lr
  int64_t lr_warmup_steps = 0;  // the first of them has learning rate 0
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
// The end of the metric's name: "fault/" + key.
const char* key(Fault fault);

// Consecutive rollouts that all show one case, added up.
struct Streak {
  int64_t first = 0, last = 0;  // from 0
  int64_t num_rollouts = 0;
  int64_t num_samples = 0, num_affected = 0;
  int64_t num_groups = 0, num_identical_groups = 0;
  int64_t num_truncated = 0, num_repetitive = 0, longest_tokens = 0;
  double lowest_reward = 0.0, highest_reward = 0.0;
  int64_t num_best = 0;  // samples with the highest reward
  bool all_advantages_zero = true;
  std::optional<int64_t> differed_until;  // the last rollout before it, from 0, whose rewards were not all equal
  // Of completions: whether some rollout before it did not show the case; unset: not known, the run has resumed.
  std::optional<bool> came_later;

  bool all_affected() const { return num_affected == num_samples; }
};

// What a filter of dynamic sampling left of the groups of a rollout.
struct FilterStats {
  int64_t num_sampled = 0;  // groups that it looked at
  int64_t num_kept = 0, num_wanted = 0;
};

class LearningHealth {
 public:
  using Say = std::function<void(const std::string& line)>;
  using Counts = std::map<std::string, double>;  // "fault/<key>" to how many; what does not hold is absent

  static constexpr int64_t kRepeatEvery = 50;
  static constexpr int64_t kForgetAfter = 10;
  // Groups sampled for each one that a filter keeps, from which on it is a waste.
  static constexpr int64_t kWastefulFilter = 10;

  // `warn` gets what a run should not go on with; `inform` that every reward is the best one, which is success unless
  // it is so from the start and in many samples.
  LearningHealth(HealthSettings settings, Say warn, Say inform);
  // Both go to the log.
  explicit LearningHealth(HealthSettings settings);

  // After rewards and advantages of a rollout, before it is trained on. `rollout` counts from 0.
  Counts observe_rollout(int64_t rollout, std::span<const Sample* const> samples);
  // After a rollout of dynamic sampling.
  Counts observe_filter(int64_t rollout, const FilterStats& stats);
  // The last rollout whose rewards were not all equal; part of a checkpoint. nullopt: none was.
  std::optional<int64_t> differed_until() const { return differed_until_; }
  // After an optimizer step, which counts from 0 over the run: the samples it was made of, and its learning rate.
  Counts observe_step(int64_t step, std::span<const Sample* const> samples, double lr);

 private:
  struct AlertState {
    std::optional<int64_t> last_held, last_said;
    bool said = false;  // since the case last came (back)
  };
  struct Case {
    Streak stretch;
    AlertState voice;
  };

  // The fault holds in this rollout, for `num_affected` of `num_samples`: its stretch with the rollout in it.
  const Streak& hold(Fault fault, int64_t rollout, const RolloutStats& signal, int64_t num_samples,
                     int64_t num_affected);
  void extend_streak(Fault fault, int64_t at);
  void say(Fault fault, int64_t at, const std::string& line, const Say& to);
  void see_graders(int64_t rollout, const RolloutStats& signal, Counts& counts);
  void see_completions(int64_t rollout, const RolloutStats& signal, Counts& counts);
  void see_prompts(int64_t rollout, const RolloutStats& signal, Counts& counts);
  void see_rewards(int64_t rollout, const RolloutStats& signal, Counts& counts);
  void say_solved(int64_t rollout, bool from_the_start, bool are_many);
  void update_base_rate(const RolloutStats& signal);
  std::optional<bool> came_later(bool was_well) const;
  Fault reward_fault(double lowest, double highest) const;
  Fault flat_fault() const;
  bool is_significant() const;

  HealthSettings settings_;
  bool saw_the_start_ = false;  // rollout 0
  bool has_warned_of_start_ = false;
  bool have_ended_ = false;  // most completions of some rollout
  bool have_text_ = false;   // enough completions of some rollout
  std::optional<int64_t> differed_until_;
  Say warn_, inform_;
  std::map<Fault, Case> cases_;
  // Rollouts whose rewards differ nowhere; which fault that is, all of them together tell.
  Streak flat_;
  // Groups before flat_, once rewards have differed: how often equal ones are chance in this run.
  int64_t num_groups_seen_ = 0, num_equal_groups_seen_ = 0;
  std::optional<double> highest_reward_seen_;
};

}  // namespace tandem::rl
