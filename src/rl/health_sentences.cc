#include "rl/health_sentences.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/message_text.h"

namespace tandem::rl {
namespace {

// Names the rollouts as people count them, from 1, like the progress line.
std::string title(const Streak& stretch) {
  if (stretch.first == stretch.last) return fmt::format("rollout {}", stretch.last + 1);
  return fmt::format("rollouts {} to {}", stretch.first + 1, stretch.last + 1);
}

// Returns "all 256 completions", "160 of 256 completions (62 %)": a part below the whole is at most 99 %.
std::string share(int64_t part, int64_t whole, const std::string& what) {
  if (part == whole) return fmt::format("all {} {}", whole, what);
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  return fmt::format("{} of {} {} ({:.0f} %)", part, whole, what, std::min(percent, 99.0));
}

std::string tokens(const Streak& stretch) {
  return fmt::format("{} token{}", stretch.longest_tokens, stretch.longest_tokens == 1 ? "" : "s");
}

// Returns "64 tokens", or "up to 64 tokens" where not all completions were cut there: the context leaves the longest
// prompts least.
std::string most_tokens(const Streak& stretch) { return (stretch.cuts_differ ? "up to " : "") + tokens(stretch); }

// Returns the flag of the limit that the completions ran into, after that of a generate function where there is one.
std::string limit_flag(const HealthSettings& settings, const Streak& stretch) {
  const bool by_context = settings.max_response_tokens == 0 ||
                          (settings.context_may_cut && stretch.longest_tokens < settings.max_response_tokens);
  const std::string flag =
      by_context ? "--rollout-max-context-len (the model's context, where it is unset)" : "--rollout-max-response-len";
  if (settings.generate.empty()) return flag;
  return fmt::format("max_new_tokens where {} asks for fewer tokens than it may, or else {}", settings.generate, flag);
}

// Returns whatever may be at fault where completions have wrong rewards: a generate function may give them too.
std::string rewarded_by(const HealthSettings& settings) {
  return settings.generate.empty() ? settings.grader : fmt::format("{} or {}", settings.generate, settings.grader);
}

std::string truncated(const HealthSettings& settings, const Streak& stretch) {
  const std::string opening =
      fmt::format("{}: {} were cut at {}", title(stretch),
                  share(stretch.num_affected, stretch.num_samples, "completions"), most_tokens(stretch));
  const std::string limit = limit_flag(settings, stretch);
  if (stretch.came_later.value_or(false)) {
    return fmt::format(
        "{}, and most ended by themselves before: if answers have only grown longer, raise {}; if rewards fell with "
        "it, "
        "lower --lr {:g}",
        opening, limit, settings.lr);
  }
  return fmt::format("{}, so {}: raise {}", opening,
                     !stretch.all_affected() ? "their answers are not finished"
                     : stretch.came_later    ? "no answer was ever finished"
                                             : "no answer is finished",
                     limit);
}

std::string eos_never_sampled(const HealthSettings& settings, const Streak& stretch) {
  if (!settings.can_stop) {
    return fmt::format(
        "{}: all {} completions ran into the limit of {} because nothing can end them, the checkpoint names no "
        "EOS: add eos_token_id to its generation_config.json, or give --rollout-stop-token-ids or --rollout-stop",
        title(stretch), stretch.num_samples, most_tokens(stretch));
  }
  const std::string repetitive =
      stretch.num_repetitive == 0 ? "" : fmt::format(" ({} repeat themselves)", stretch.num_repetitive);
  const std::string eos =
      settings.eos_token_ids.empty()
          ? std::string(
                "no --rollout-stop or --rollout-stop-token-ids was ever met, and the checkpoint names no EOS: "
                "check them, or add eos_token_id to its generation_config.json")
          : fmt::format(
                "the model never samples EOS {}: check that eos_token_id in config.json is the token that the "
                "chat template ends answers with, or give --rollout-stop-token-ids",
                settings.eos_token_ids);
  return fmt::format(
      "{}: none of {} completions ended by itself within {}{}, {}; if answers are only long, "
      "raise {}",
      title(stretch), stretch.num_samples, tokens(stretch), repetitive, eos, limit_flag(settings, stretch));
}

std::string empty(const HealthSettings& settings, const Streak& stretch) {
  if (stretch.came_later.value_or(false)) {
    return fmt::format(
        "{}: {} are empty, which was not so before: the policy has learnt to say nothing: check what the reward gives "
        "for an empty answer; if rewards fell with it, lower --lr {:g}",
        title(stretch), share(stretch.num_affected, stretch.num_samples, "completions"), settings.lr);
  }
  const std::string stop = settings.has_stop_texts ? ", and that --rollout-stop does not match at once" : "";
  return fmt::format(
      "{}: {} are empty, the model ends its answer before it begins: check that prompts are rendered as the model "
      "was trained, with or without --apply-chat-template (samples/ shows them){}",
      title(stretch), share(stretch.num_affected, stretch.num_samples, "completions"), stop);
}

std::string template_opens_no_answer(const HealthSettings& settings) {
  const std::string effect =
      "rendered prompts end before the assistant's header, so the model does not know that it is its turn";
  if (settings.template_told_not_to) {
    return fmt::format("--apply-chat-template-kwargs turns add_generation_prompt off: {}: take it out", effect);
  }
  return fmt::format(
      "the chat template has no generation prompt: {}: add {{% if add_generation_prompt %}} and the header to the end "
      "of chat_template in tokenizer_config.json",
      effect);
}

std::string prompts_dropped(const HealthSettings& settings) {
  return fmt::format(
      "{} are longer than --rollout-max-prompt-len and are never trained on: raise it, or shorten the prompts",
      share(settings.num_prompts_dropped, settings.num_prompts_read, "prompts"));
}

// Returns the consequence of equal rewards.
std::string effect(const HealthSettings& settings, const Streak& stretch) {
  if (stretch.all_advantages_zero) return "so all advantages are 0 and nothing is learnt";
  return settings.has_penalties ? "so only --kl-coef and --overlong-buffer-len prefer one completion to another"
                                : "so no completion is preferred to another";
}

// Rewards differed before, or were all higher, so labels and grader are not the cause.
std::string collapsed(const HealthSettings& settings, const Streak& stretch, const std::string& opening) {
  const bool is_lowest = stretch.highest_reward == settings.lowest_reward.value_or(0.0);
  const std::string before = fmt::format("{} {:.6g}", is_lowest ? "above" : "not all", stretch.lowest_reward);
  return fmt::format(
      "{}: rewards were {} until rollout {}, so most likely the steps since then were too large and the policy has "
      "collapsed: lower --lr {:g}, and resume from an earlier checkpoint (--load RUN --ckpt-step N "
      "--allow-changed-config) or begin again",
      opening, before, *stretch.differed_until + 1, settings.lr);
}

std::string answer_never_right(const HealthSettings& settings, const Streak& stretch) {
  const std::string opening = fmt::format("{}: all {} rewards are {:.6g}, {}", title(stretch), stretch.num_samples,
                                          stretch.lowest_reward, effect(settings, stretch));
  if (settings.gives_only_zero) {
    return fmt::format(
        "{}: {} gives every completion 0: give another --rm-type or --custom-rm-path, or learn from a teacher: "
        "--use-opd with --opd-kl-coef or --opd-loss-coef above 0",
        opening, rewarded_by(settings));
  }
  if (stretch.differed_until) return collapsed(settings, stretch, opening);
  if (settings.ignore_eos) {
    return fmt::format(
        "{}: --ignore-eos lets every completion run on to {}, past its answer: leave it out, unless {} finds an "
        "answer in the midst of a text",
        opening, most_tokens(stretch), rewarded_by(settings));
  }
  if (2 * stretch.num_truncated > stretch.num_samples) {
    return fmt::format("{}: most likely because {} were cut at {}, before their answer: raise {}", opening,
                       share(stretch.num_truncated, stretch.num_samples, "completions"), most_tokens(stretch),
                       limit_flag(settings, stretch));
  }
  return fmt::format(
      "{}: no answer is right, or none is found where {} looks: check --label-key, and that prompts ask for the form "
      "in which it finds an answer (samples/ shows both)",
      opening, rewarded_by(settings));
}

std::string rewards_equal(const HealthSettings& settings, const Streak& stretch) {
  const std::string opening = fmt::format("{}: all {} rewards are {:.6g}, {}", title(stretch), stretch.num_samples,
                                          stretch.lowest_reward, effect(settings, stretch));
  if (stretch.differed_until) return collapsed(settings, stretch, opening);
  return fmt::format("{}: {} does not tell completions apart: check what it looks at", opening, rewarded_by(settings));
}

std::string group_rewards_equal(const HealthSettings& settings, const Streak& stretch) {
  const std::string opening = fmt::format("{}: rewards differ between prompts but in none of {} groups, {}",
                                          title(stretch), stretch.num_groups, effect(settings, stretch));
  if (2 * stretch.num_identical_groups > stretch.num_groups) {
    return fmt::format(
        "{}: the completions of a group are all the same: raise --rollout-temperature {:g}, or widen "
        "--rollout-top-p or --rollout-top-k",
        opening, settings.temperature);
  }
  return fmt::format(
      "{}: {} looks at the prompt or its label alone, or every prompt is far too easy or too hard: check it, or give "
      "prompts that are sometimes answered right",
      opening, rewarded_by(settings));
}

std::string advantages_zero(const HealthSettings& settings, const Streak& stretch) {
  if (stretch.num_groups == 0) {
    return fmt::format(
        "{}: no group has two samples with a reward, so all {} advantages are 0 and nothing is learnt: raise "
        "--n-samples-per-prompt, or mend the grader where samples failed",
        title(stretch), stretch.num_samples);
  }
  return fmt::format(
      "{}: all {} advantages are 0 although rewards differ ({:.6g} to {:.6g}), so nothing is learnt: {}",
      title(stretch), stretch.num_samples, stretch.lowest_reward, stretch.highest_reward,
      settings.advantages.empty()
          ? "the differences are lost in --group-epsilon or in --advantage-estimator: scale the reward up"
          : fmt::format("check what {} returns", settings.advantages));
}

// A cause of failures, in the words of the sentence that has it.
struct Cause {
  int64_t num_samples = 0;
  std::string what;    // "the grader failed on"
  std::string remedy;  // "mend --rm-type math"
};

// Samples fail for several causes, and each has a remedy of its own.
std::string grader_always_fails(const HealthSettings& settings, const Streak& stretch) {
  const FailureCauses& causes = stretch.causes;
  const int64_t num_known = causes.num_not_made + causes.num_not_served + causes.num_not_applied_to;
  const int64_t num_others = std::max<int64_t>(stretch.num_samples - num_known, 0);
  const int64_t num_of_service = causes.num_not_served + (settings.asks_service ? num_others : 0);
  std::vector<Cause> found = {
      {.num_samples = settings.asks_service ? 0 : num_others,
       .what = "the grader failed on",
       .remedy = fmt::format("mend {}, or raise --rm-timeout or --rm-memory-bytes where the failure above asks for it",
                             settings.grader)},
      {.num_samples = causes.num_not_made,
       .what = fmt::format("{} failed on", settings.generate.empty() ? "the generate function" : settings.generate),
       .remedy = "mend the function, or raise --custom-generate-timeout or --rm-memory-bytes where the failure above "
                 "asks for it"},
      {.num_samples = num_of_service,
       .what = "the service of --rm-url graded nothing of",
       .remedy = "look at that service, whether it runs and what it answers, or raise --rm-timeout where the failure "
                 "above asks for it"},
      {.num_samples = causes.num_not_applied_to,
       .what = "the reward gave None (it does not apply) for",
       .remedy = fmt::format("check for which samples {} gives None", settings.grader)}};
  std::erase_if(found, [](const Cause& cause) { return cause.num_samples == 0; });
  std::vector<std::string> whats, remedies;
  for (const Cause& cause : found) {
    whats.push_back(found.size() == 1 ? fmt::format("{} all {} samples", cause.what, cause.num_samples)
                    : whats.empty()
                        ? fmt::format("{} {} of {} samples", cause.what, cause.num_samples, stretch.num_samples)
                        : fmt::format("{} {}", cause.what, cause.num_samples));
    remedies.push_back(cause.remedy);
  }
  return fmt::format("{}: {}, so none has a reward and nothing is learnt: {}", title(stretch),
                     fmt::join(whats, ", and "), fmt::join(remedies, "; "));
}

}  // namespace

std::string fault_sentence(Fault fault, const HealthSettings& settings, const Streak& stretch) {
  switch (fault) {
    case Fault::kGraderAlwaysFails: return grader_always_fails(settings, stretch);
    case Fault::kEosNeverSampled: return eos_never_sampled(settings, stretch);
    case Fault::kCompletionsTruncated: return truncated(settings, stretch);
    case Fault::kCompletionsEmpty: return empty(settings, stretch);
    case Fault::kTemplateOpensNoAnswer: return template_opens_no_answer(settings);
    case Fault::kPromptsDropped: return prompts_dropped(settings);
    case Fault::kAnswerNeverRight: return answer_never_right(settings, stretch);
    case Fault::kRewardsEqual: return rewards_equal(settings, stretch);
    case Fault::kGroupRewardsEqual: return group_rewards_equal(settings, stretch);
    case Fault::kAdvantagesZero: return advantages_zero(settings, stretch);
    case Fault::kTaskSolved:
    case Fault::kLearningRateZero:
    case Fault::kLossMaskZero:
    case Fault::kFilterDropsMost:
    case Fault::kTooFewGroups: break;
  }
  TANDEM_CHECK(false, "this fault has a sentence of its own", key(fault));
  return "";
}

std::string solved_sentence(const HealthSettings& settings, const Streak& stretch, bool from_the_start) {
  const std::string opening =
      fmt::format("{}: all {} rewards are {:.6g}", title(stretch), stretch.num_samples, stretch.highest_reward);
  if (from_the_start) {
    return fmt::format(
        "{} from the start, {}: the task is solved already, or {} gives it to every completion: give "
        "harder prompts, or check it",
        opening, effect(settings, stretch), rewarded_by(settings));
  }
  return fmt::format("{}: the task is solved and more steps teach nothing: stop here, or give harder prompts", opening);
}

std::string filter_drops_most_sentence(const HealthSettings& settings, int64_t rollout, const FilterStats& stats) {
  return fmt::format(
      "rollout {}: --dynamic-sampling-filter-path {} kept {} of {}, {:.3g} are sampled for each that is trained "
      "on: give prompts that are sometimes answered right, or raise --n-samples-per-prompt{}",
      rollout + 1, settings.filter, stats.num_kept, base::counted(stats.num_sampled, "group"),
      static_cast<double>(stats.num_sampled) / static_cast<double>(std::max<int64_t>(stats.num_kept, 1)),
      settings.has_filter_budget ? "" : "; --max-sampled-groups bounds it");
}

std::string too_few_groups_sentence(const HealthSettings& settings, int64_t rollout, const FilterStats& stats) {
  return fmt::format(
      "rollout {}: of {} --dynamic-sampling-filter-path {} kept {}, fewer than --rollout-batch-size {}, and the "
      "rollout is trained on those (--on-too-few-groups): raise --max-sampled-groups, or give prompts that are "
      "sometimes answered right",
      rollout + 1, base::counted(stats.num_sampled, "group"), settings.filter, stats.num_kept, stats.num_wanted);
}

std::string learning_rate_sentence(const HealthSettings& settings, int64_t step) {
  if (settings.lr == 0.0) {
    return fmt::format(
        "optimizer step {}: the learning rate is 0, so the weights never change: give --lr more than 0, such as 1e-6",
        step + 1);
  }
  if (step == 0) {
    return "optimizer step 1: the run's only step is the first of its warm-up, whose learning rate is 0: give "
           "--lr-warmup-iters 0, or more steps";
  }
  return fmt::format(
      "optimizer step {}: the learning rate has fallen to 0 with {} of {} steps still to come: raise --lr-decay-iters "
      "or --min-lr",
      step + 1, std::max<int64_t>(settings.num_steps - step, 0), settings.num_steps);
}

std::string loss_mask_sentence(int64_t step, int64_t num_samples, int64_t num_tokens) {
  return fmt::format(
      "optimizer step {}: none of the {} of {} is trained, the loss mask is 0 everywhere, so the "
      "gradient is 0: check what masks them",
      step + 1, base::counted(num_tokens, "token"), base::counted(num_samples, "completion"));
}

}  // namespace tandem::rl
