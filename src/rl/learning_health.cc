#include "rl/learning_health.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "rl/health_sentences.h"

namespace tandem::rl {
namespace {

// A report needs this much evidence. In a healthy run that truncates 30 % of its completions, 12 that are all cut have
// a chance of one in two million, and 24 with more than half cut in each of two rollouts one in seven hundred.
constexpr int64_t kSamplesAllAffected = 12;
constexpr int64_t kSamplesMostAffected = 24;
constexpr int64_t kSamplesOfOneRollout = 128;  // enough without a second rollout
constexpr int64_t kFailedSamples = 4;
// Once rewards have differed, a streak of equal ones below this probability is no chance: runs have thousands of
// rollouts, each of which may begin one.
constexpr double kChance = 1e-6;

constexpr double kTruncatedShare = 0.5, kEmptyShare = 0.2, kDroppedShare = 0.01;

constexpr double kSolvedReward = 1.0;  // usual reward of a right answer

bool is_above(int64_t part, int64_t whole, double limit) {
  return static_cast<double>(part) > limit * static_cast<double>(whole);
}

bool is_enough(const Streak& stretch) {
  if (stretch.num_samples >= (stretch.all_affected() ? kSamplesAllAffected : kSamplesOfOneRollout)) return true;
  return stretch.num_rollouts >= 2 && stretch.num_samples >= kSamplesMostAffected;
}

std::string metric(Fault fault) { return std::string("fault/") + key(fault); }

void add(Streak& stretch, int64_t rollout, const RolloutStats& signal, int64_t num_samples, int64_t num_affected) {
  if (stretch.num_rollouts == 0) {
    stretch.first = rollout;
    stretch.lowest_reward = signal.lowest_reward;
    stretch.highest_reward = signal.highest_reward;
  }
  stretch.last = rollout;
  stretch.num_rollouts += 1;
  stretch.num_samples += num_samples;
  stretch.num_affected += num_affected;
  stretch.num_groups += signal.num_groups;
  stretch.num_identical_groups += signal.num_identical_groups;
  stretch.num_truncated += signal.num_truncated;
  stretch.num_repetitive += signal.num_repetitive;
  const bool has_other_limit = stretch.num_rollouts > 1 && signal.longest_tokens != stretch.longest_tokens;
  stretch.cuts_differ = stretch.cuts_differ || signal.cuts_differ || has_other_limit;
  stretch.longest_tokens = std::max(stretch.longest_tokens, signal.longest_tokens);
  if (signal.highest_reward > stretch.highest_reward) stretch.num_best = 0;
  if (signal.highest_reward >= stretch.highest_reward) stretch.num_best += signal.num_best;
  stretch.lowest_reward = std::min(stretch.lowest_reward, signal.lowest_reward);
  stretch.highest_reward = std::max(stretch.highest_reward, signal.highest_reward);
  stretch.all_advantages_zero = stretch.all_advantages_zero && signal.all_advantages_zero;
}

}  // namespace

const char* key(Fault fault) {
  switch (fault) {
    case Fault::kGraderAlwaysFails: return "grader_always_fails";
    case Fault::kLossMaskZero: return "loss_mask_zero";
    case Fault::kEosNeverSampled: return "eos_never_sampled";
    case Fault::kCompletionsTruncated: return "completions_truncated";
    case Fault::kCompletionsEmpty: return "completions_empty";
    case Fault::kTemplateOpensNoAnswer: return "template_opens_no_answer";
    case Fault::kPromptsDropped: return "prompts_dropped";
    case Fault::kAnswerNeverRight: return "answer_never_right";
    case Fault::kRewardsEqual: return "rewards_equal";
    case Fault::kGroupRewardsEqual: return "group_rewards_equal";
    case Fault::kTaskSolved: return "task_solved";
    case Fault::kAdvantagesZero: return "advantages_zero";
    case Fault::kLearningRateZero: return "learning_rate_zero";
    case Fault::kFilterDropsMost: return "filter_drops_most";
    case Fault::kTooFewGroups: return "too_few_groups";
  }
  return "unknown";
}

LearningHealth::LearningHealth(HealthSettings settings, Say warn, Say inform)
    : settings_(std::move(settings)),
      differed_until_(settings_.differed_until),
      warn_(std::move(warn)),
      inform_(std::move(inform)) {}

LearningHealth::LearningHealth(HealthSettings settings)
    : LearningHealth(
          std::move(settings), [](const std::string& line) { base::log_warning("{}", line); },
          [](const std::string& line) { base::log_info("{}", line); }) {}

LearningHealth::Counts LearningHealth::observe_rollout(int64_t rollout, std::span<const Sample* const> samples,
                                                       const RolloutFaults& faults) {
  Counts counts;
  const RolloutStats signal = measure_signal(samples);
  saw_the_start_ = saw_the_start_ || rollout == 0;
  see_prompts(rollout, signal, counts);
  see_graders(rollout, signal, faults.causes, counts);
  if (signal.num_samples > 0) see_completions(rollout, signal, counts);
  see_rewards(rollout, signal, faults.advantages_failed, counts);
  return counts;
}

LearningHealth::Counts LearningHealth::observe_filter(int64_t rollout, const FilterStats& stats) {
  Counts counts;
  if (stats.num_sampled >= kWastefulFilter * stats.num_kept) {
    counts[metric(Fault::kFilterDropsMost)] = static_cast<double>(stats.num_sampled - stats.num_kept);
    extend_streak(Fault::kFilterDropsMost, rollout);
    say(Fault::kFilterDropsMost, rollout, filter_drops_most_sentence(settings_, rollout, stats), warn_);
  }
  if (stats.num_kept < stats.num_wanted) {
    counts[metric(Fault::kTooFewGroups)] = static_cast<double>(stats.num_wanted - stats.num_kept);
    extend_streak(Fault::kTooFewGroups, rollout);
    say(Fault::kTooFewGroups, rollout, too_few_groups_sentence(settings_, rollout, stats), warn_);
  }
  return counts;
}

LearningHealth::Counts LearningHealth::observe_step(int64_t step, std::span<const Sample* const> samples, double lr) {
  Counts counts;
  int64_t num_kept = 0, num_tokens = 0, num_trained = 0;
  for (const Sample* sample : samples) {
    if (sample->remove) continue;
    const auto num_masked = std::count(sample->loss_mask.begin(), sample->loss_mask.end(), uint8_t{0});
    num_kept += 1;
    num_tokens += static_cast<int64_t>(sample->completion.size());
    num_trained += static_cast<int64_t>(sample->loss_mask.size()) - num_masked;
  }
  if (num_kept > 0 && num_trained == 0) {
    counts[metric(Fault::kLossMaskZero)] = static_cast<double>(num_kept);
    extend_streak(Fault::kLossMaskZero, step);
    say(Fault::kLossMaskZero, step, loss_mask_sentence(step, num_kept, num_tokens), warn_);
  }
  const bool warms_up = step == 0 && settings_.lr_warmup_steps > 0 && settings_.lr > 0.0 && settings_.num_steps > 1;
  if (lr == 0.0 && !warms_up) {
    counts[metric(Fault::kLearningRateZero)] = 1.0;
    extend_streak(Fault::kLearningRateZero, step);
    say(Fault::kLearningRateZero, step, learning_rate_sentence(settings_, step), warn_);
  }
  return counts;
}

const Streak& LearningHealth::hold(Fault fault, int64_t rollout, const RolloutStats& signal, int64_t num_samples,
                                   int64_t num_affected) {
  Case& watched = cases_[fault];
  if (watched.voice.last_held != rollout - 1) watched.stretch = {};
  extend_streak(fault, rollout);
  add(watched.stretch, rollout, signal, num_samples, num_affected);
  return watched.stretch;
}

void LearningHealth::extend_streak(Fault fault, int64_t at) {
  AlertState& voice = cases_[fault].voice;
  if (voice.last_held && at - *voice.last_held > kForgetAfter) voice.said = false;
  voice.last_held = at;
}

void LearningHealth::say(Fault fault, int64_t at, const std::string& line, const Say& to) {
  AlertState& voice = cases_[fault].voice;
  if (voice.said && at - *voice.last_said < kRepeatEvery) return;
  voice.said = true;
  voice.last_said = at;
  to(line);
}

// Reports what is known before the first rollout, together with that rollout, and counts it.
void LearningHealth::see_prompts(int64_t rollout, const RolloutStats& signal, Counts& counts) {
  if (!settings_.template_opens_answer) {
    counts[metric(Fault::kTemplateOpensNoAnswer)] = static_cast<double>(signal.num_samples);
    const Streak& stretch =
        hold(Fault::kTemplateOpensNoAnswer, rollout, signal, signal.num_samples, signal.num_samples);
    say(Fault::kTemplateOpensNoAnswer, rollout, fault_sentence(Fault::kTemplateOpensNoAnswer, settings_, stretch),
        warn_);
  }
  if (rollout == 0 && is_above(settings_.num_prompts_dropped, settings_.num_prompts_read, kDroppedShare)) {
    counts[metric(Fault::kPromptsDropped)] = static_cast<double>(settings_.num_prompts_dropped);
    warn_(fault_sentence(Fault::kPromptsDropped, settings_, {}));
  }
}

void LearningHealth::see_graders(int64_t rollout, const RolloutStats& signal, const FailureCauses& causes,
                                 Counts& counts) {
  if (!signal.all_failed()) return;
  counts[metric(Fault::kGraderAlwaysFails)] = static_cast<double>(signal.num_failed);
  hold(Fault::kGraderAlwaysFails, rollout, signal, signal.num_samples, signal.num_failed);
  Streak& stretch = cases_[Fault::kGraderAlwaysFails].stretch;
  stretch.causes.num_not_made += causes.num_not_made;
  stretch.causes.num_not_served += causes.num_not_served;
  stretch.causes.num_not_applied_to += causes.num_not_applied_to;
  if (stretch.num_samples < kFailedSamples) return;
  say(Fault::kGraderAlwaysFails, rollout, fault_sentence(Fault::kGraderAlwaysFails, settings_, stretch), warn_);
}

void LearningHealth::see_completions(int64_t rollout, const RolloutStats& signal, Counts& counts) {
  if (!settings_.ignore_eos && is_above(signal.num_truncated, signal.num_samples, kTruncatedShare)) {
    const bool all = signal.num_truncated == signal.num_samples;
    const bool generous =
        signal.longest_tokens >= kDefaultResponseTokens || is_above(signal.num_repetitive, signal.num_samples, 0.5);
    const Fault cause =
        all && (!settings_.can_stop || generous) ? Fault::kEosNeverSampled : Fault::kCompletionsTruncated;
    counts[metric(Fault::kCompletionsTruncated)] = static_cast<double>(signal.num_truncated);
    if (cause == Fault::kEosNeverSampled) counts[metric(cause)] = static_cast<double>(signal.num_samples);
    // If some completions of a model have ended, it knows its EOS.
    const bool may_know_eos = have_ended_ || !saw_the_start_;
    const Fault said = settings_.can_stop && may_know_eos ? Fault::kCompletionsTruncated : cause;
    Streak stretch = hold(said, rollout, signal, signal.num_samples, signal.num_truncated);
    stretch.came_later = came_later(have_ended_);
    if (is_enough(stretch)) say(said, rollout, fault_sentence(said, settings_, stretch), warn_);
  } else {
    have_ended_ = true;
  }
  if (is_above(signal.num_empty, signal.num_samples, kEmptyShare)) {
    counts[metric(Fault::kCompletionsEmpty)] = static_cast<double>(signal.num_empty);
    Streak stretch = hold(Fault::kCompletionsEmpty, rollout, signal, signal.num_samples, signal.num_empty);
    stretch.came_later = came_later(have_text_);
    if (is_enough(stretch)) {
      say(Fault::kCompletionsEmpty, rollout, fault_sentence(Fault::kCompletionsEmpty, settings_, stretch), warn_);
    }
  } else {
    have_text_ = true;
  }
}

std::optional<bool> LearningHealth::came_later(bool was_well) const {
  return was_well || saw_the_start_ ? std::optional(was_well) : std::nullopt;
}

void LearningHealth::see_rewards(int64_t rollout, const RolloutStats& signal, bool advantages_failed, Counts& counts) {
  const int64_t num_rewarded = signal.num_rewarded();
  std::optional<int64_t> differed_until = differed_until_;
  if (!signal.all_failed() && num_rewarded > 0 && !signal.all_rewards_equal()) differed_until_ = rollout;
  if (num_rewarded < 2 || signal.all_failed()) return;  // rewards of failed gradings tell nothing about answers
  // A loss of whole distributions needs no advantages, and of a function that failed it is known why there are none.
  const bool all_zero = signal.all_advantages_zero && !settings_.learns_from_teacher && !advantages_failed;
  if (all_zero) counts[metric(Fault::kAdvantagesZero)] = static_cast<double>(num_rewarded);
  const bool is_flat = !settings_.learns_from_teacher &&
                       (signal.all_rewards_equal() || (settings_.compares_group && signal.all_groups_equal()));
  if (!is_flat) {
    update_base_rate(signal);
    if (!all_zero) return;
    const Streak& stretch = hold(Fault::kAdvantagesZero, rollout, signal, num_rewarded, num_rewarded);
    say(Fault::kAdvantagesZero, rollout, fault_sentence(Fault::kAdvantagesZero, settings_, stretch), warn_);
    return;
  }
  if (has_fallen(signal)) {
    end_equal_stretch();
    differed_until = differed_until_;
  }
  const Fault here = reward_fault(signal.lowest_reward, signal.highest_reward);
  counts[metric(here)] = static_cast<double>(here == Fault::kGroupRewardsEqual ? signal.num_groups : num_rewarded);
  if (flat_.num_rollouts == 0) flat_.differed_until = differed_until;
  add(flat_, rollout, signal, num_rewarded, num_rewarded);
  const bool from_the_start = saw_the_start_ && !highest_reward_seen_;
  const bool is_whole_run = from_the_start && rollout + 1 == settings_.num_rollouts;
  if (!is_significant() && !is_whole_run) return;
  const Fault fault = flat_fault();
  extend_streak(fault, rollout);
  if (fault == Fault::kTaskSolved) {
    say_solved(rollout, from_the_start, is_whole_run || flat_.num_samples >= kSamplesOfOneRollout);
  } else {
    say(fault, rollout, fault_sentence(fault, settings_, flat_), warn_);
  }
}

// A good policy may begin with some rollouts that are all right. If there are many, or nothing else in a whole run, it
// is a warning.
void LearningHealth::say_solved(int64_t rollout, bool from_the_start, bool are_many) {
  const std::string line = solved_sentence(settings_, flat_, from_the_start);
  const bool warns = from_the_start && are_many;
  if (warns && !std::exchange(has_warned_of_start_, true)) cases_[Fault::kTaskSolved].voice.said = false;
  say(Fault::kTaskSolved, rollout, line, warns ? warn_ : inform_);
}

// A rollout whose rewards differ ends the flat streak before it. For an estimator that does not compare within groups a
// rollout is one group.
void LearningHealth::update_base_rate(const RolloutStats& signal) {
  const int64_t num_flat = settings_.compares_group ? flat_.num_groups : flat_.num_rollouts;
  num_groups_seen_ += num_flat + (settings_.compares_group ? signal.num_groups : 1);
  num_equal_groups_seen_ += num_flat + (settings_.compares_group ? signal.num_equal_groups : 0);
  highest_reward_seen_ = std::max(highest_reward_seen_.value_or(signal.highest_reward), signal.highest_reward);
  flat_ = {};
}

// All rewards are equal and lower than those of a stretch in which all were equal for long enough: prompts that differ
// do not explain it, the policy has changed.
bool LearningHealth::has_fallen(const RolloutStats& signal) const {
  return signal.all_rewards_equal() && flat_.num_rollouts > 0 && flat_.lowest_reward == flat_.highest_reward &&
         signal.highest_reward < flat_.highest_reward && is_significant();
}

// Ends a stretch of equal rewards. The stretch's groups were equal at a higher reward, so they are no evidence that
// chance gives equal ones at the lower.
void LearningHealth::end_equal_stretch() {
  num_groups_seen_ += settings_.compares_group ? flat_.num_groups : flat_.num_rollouts;
  highest_reward_seen_ = std::max(highest_reward_seen_.value_or(flat_.highest_reward), flat_.highest_reward);
  differed_until_ = flat_.last;
  flat_ = {};
}

// Returns the fault that equal rewards mean, or rewards that are equal within each group.
Fault LearningHealth::reward_fault(double lowest, double highest) const {
  if (lowest != highest) return Fault::kGroupRewardsEqual;
  if (lowest == settings_.lowest_reward.value_or(0.0)) return Fault::kAnswerNeverRight;
  return lowest == kSolvedReward ? Fault::kTaskSolved : Fault::kRewardsEqual;
}

// Returns the same for the whole flat streak, given the best reward before it.
Fault LearningHealth::flat_fault() const {
  const Fault fault = reward_fault(flat_.lowest_reward, flat_.highest_reward);
  if (fault == Fault::kGroupRewardsEqual || !highest_reward_seen_) return fault;
  if (flat_.highest_reward >= *highest_reward_seen_) return Fault::kTaskSolved;  // whatever number the best one is
  return fault == Fault::kTaskSolved ? Fault::kRewardsEqual : fault;
}

// In a run whose rewards have never differed, enough samples of two rollouts are significant. Later, it takes as many
// groups in a row as have a chance below one in a million, given the groups before (their share of equal ones, by
// Laplace's rule of succession).
bool LearningHealth::is_significant() const {
  if (flat_.num_samples < kSamplesMostAffected) return false;
  const bool has_differed = highest_reward_seen_.has_value();
  const bool in_groups_only = flat_.lowest_reward != flat_.highest_reward;
  // Groups at the best reward tell little if most prompts are solved.
  const int64_t needed = has_differed ? kSamplesMostAffected : kSamplesAllAffected;
  if (in_groups_only && flat_.num_samples - flat_.num_best < needed) return false;
  if (!has_differed) return flat_.num_rollouts >= 2 || flat_.num_samples >= kSamplesOfOneRollout;
  const double equal_share =
      static_cast<double>(num_equal_groups_seen_ + 1) / static_cast<double>(num_groups_seen_ + 2);
  const auto num_groups = static_cast<double>(settings_.compares_group ? flat_.num_groups : flat_.num_rollouts);
  return num_groups * std::log(equal_share) < std::log(kChance);
}

}  // namespace tandem::rl
