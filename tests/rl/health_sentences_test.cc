// A sentence blames the cause that the settings leave possible.
#include "rl/health_sentences.h"

#include <gtest/gtest.h>

namespace tandem::rl {
namespace {

// Returns the sentence when all rewards are 0 and every completion ran to its limit.
std::string never_right(bool ignore_eos) {
  HealthSettings settings;
  settings.grader = "--rm-type math";
  settings.max_response_tokens = 64;
  settings.ignore_eos = ignore_eos;
  Streak stretch;
  stretch.num_rollouts = 2;
  stretch.last = 1;
  stretch.num_samples = stretch.num_affected = stretch.num_truncated = 256;
  stretch.longest_tokens = 64;
  return fault_sentence(Fault::kAnswerNeverRight, settings, stretch);
}

TEST(SignalSentences, ALengthThatWasWantedIsNotBlamed) {
  EXPECT_NE(never_right(false).find("were cut at 64 tokens, before their answer: raise --rollout-max-response-len"),
            std::string::npos)
      << never_right(false);
  EXPECT_NE(never_right(true).find("--ignore-eos lets every completion run on to 64 tokens, past its answer: leave it "
                                   "out, unless --rm-type math finds"),
            std::string::npos)
      << never_right(true);
  EXPECT_EQ(never_right(true).find("raise"), std::string::npos) << never_right(true);
}

// Returns the sentence when every completion was cut, the longest at 9 tokens.
std::string cut(const HealthSettings& settings, bool cuts_differ) {
  Streak stretch;
  stretch.num_rollouts = 1;
  stretch.num_samples = stretch.num_affected = stretch.num_truncated = 16;
  stretch.longest_tokens = 9;
  stretch.cuts_differ = cuts_differ;
  return fault_sentence(Fault::kCompletionsTruncated, settings, stretch);
}

TEST(LengthSentences, SayWhereAllWereCutAndWhatCutThem) {
  HealthSettings settings;
  settings.max_response_tokens = 64;
  EXPECT_NE(cut(settings, false)
                .find("all 16 completions were cut at 9 tokens, so no answer is finished: raise "
                      "--rollout-max-context-len"),
            std::string::npos)
      << cut(settings, false);
  EXPECT_NE(cut(settings, true).find("were cut at up to 9 tokens, so"), std::string::npos) << cut(settings, true);
  settings.generate = "--custom-generate-function-path agent.py:run";
  EXPECT_NE(cut(settings, false)
                .find("raise max_new_tokens where --custom-generate-function-path agent.py:run asks "
                      "for fewer tokens than it may, or else --rollout-max-context-len"),
            std::string::npos)
      << cut(settings, false);
}

// Where the context has room for the longest prompt and response, it cuts nothing: a conversation whose history was
// rewritten is cut at fewer tokens than --rollout-max-response-len by that very limit.
TEST(LengthSentences, DoNotBlameAContextThatHasRoom) {
  HealthSettings settings;
  settings.max_response_tokens = 64;
  settings.context_may_cut = false;
  EXPECT_EQ(cut(settings, false),
            "rollout 1: all 16 completions were cut at 9 tokens, so no answer is finished: raise "
            "--rollout-max-response-len");
  settings.generate = "--custom-generate-function-path agent.py:run";
  EXPECT_EQ(cut(settings, false),
            "rollout 1: all 16 completions were cut at 9 tokens, so no answer is finished: raise max_new_tokens where "
            "--custom-generate-function-path agent.py:run asks for fewer tokens than it may, or else "
            "--rollout-max-response-len");
}

TEST(LengthSentences, CountInWords) {
  HealthSettings settings;
  settings.max_response_tokens = 1;
  settings.filter = "f.py:f";
  Streak stretch;
  stretch.num_rollouts = 1;
  stretch.num_samples = stretch.num_affected = stretch.num_truncated = 16;
  stretch.longest_tokens = 1;
  EXPECT_EQ(fault_sentence(Fault::kCompletionsTruncated, settings, stretch),
            "rollout 1: all 16 completions were cut at 1 token, so no answer is finished: raise "
            "--rollout-max-response-len");
  EXPECT_EQ(loss_mask_sentence(0, 1, 9),
            "optimizer step 1: none of the 9 tokens of 1 completion is trained, the loss mask is 0 everywhere, so the "
            "gradient is 0: check what masks them");
  EXPECT_NE(too_few_groups_sentence(settings, 0, {.num_sampled = 1, .num_kept = 0, .num_wanted = 2})
                .find("of 1 group --dynamic-sampling-filter-path f.py:f kept 0, fewer than --rollout-batch-size 2"),
            std::string::npos);
}

// Returns the sentence when none of 16 samples could be graded.
std::string nothing_graded(const HealthSettings& settings, const FailureCauses& causes) {
  Streak stretch;
  stretch.num_rollouts = 1;
  stretch.num_samples = stretch.num_affected = 16;
  stretch.causes = causes;
  return fault_sentence(Fault::kGraderAlwaysFails, settings, stretch);
}

// Where a generate function failed no grader ran, and yet the grader was to be mended.
TEST(FailureSentences, BlameWhatFailed) {
  HealthSettings settings;
  settings.grader = "--rm-type exact";
  settings.generate = "--custom-generate-function-path agent.py:run";
  EXPECT_EQ(
      nothing_graded(settings, {}),
      "rollout 1: the grader failed on all 16 samples, so none has a reward and nothing is learnt: mend --rm-type "
      "exact, or raise --rm-timeout or --rm-memory-bytes where the failure above asks for it");
  EXPECT_EQ(
      nothing_graded(settings, {.num_not_made = 16}),
      "rollout 1: --custom-generate-function-path agent.py:run failed on all 16 samples, so none has a reward and "
      "nothing is learnt: mend the function, or raise --custom-generate-timeout or --rm-memory-bytes where the "
      "failure above asks for it");
  EXPECT_EQ(nothing_graded(settings, {.num_not_made = 6}),
            "rollout 1: the grader failed on 10 of 16 samples, and --custom-generate-function-path agent.py:run failed "
            "on 6, so none has a reward and nothing is learnt: mend --rm-type exact, or raise --rm-timeout or "
            "--rm-memory-bytes where the failure above asks for it; mend the function, or raise "
            "--custom-generate-timeout or --rm-memory-bytes where the failure above asks for it");
  EXPECT_EQ(nothing_graded(settings, {.num_not_applied_to = 16}),
            "rollout 1: the reward gave None (it does not apply) for all 16 samples, so none has a reward and nothing "
            "is learnt: check for which samples --rm-type exact gives None");
}

// Nobody can mend --rm-type remote_rm.
TEST(FailureSentences, OfAServiceSayToLookAtIt) {
  HealthSettings settings;
  settings.grader = "--rm-type remote_rm";
  settings.asks_service = true;
  const std::string says =
      "rollout 1: the service of --rm-url graded nothing of all 16 samples, so none has a reward and nothing is "
      "learnt: "
      "look at that service, whether it runs and what it answers, or raise --rm-timeout where the failure above asks "
      "for it";
  EXPECT_EQ(nothing_graded(settings, {.num_not_served = 16}), says);
  EXPECT_EQ(nothing_graded(settings, {.num_not_served = 3}), says) << "the others took too long";
  settings.asks_service = false;
  settings.grader = "--rm-type remote_rm math";
  EXPECT_EQ(nothing_graded(settings, {.num_not_served = 16}), says);
}

// A generate function may give rewards, so both are named where those are at fault.
TEST(SignalSentences, RewardsMayBeThoseOfAGenerateFunction) {
  HealthSettings settings;
  settings.grader = "--rm-type exact";
  settings.generate = "--custom-generate-function-path agent.py:run";
  Streak stretch;
  stretch.num_rollouts = 1;
  stretch.num_samples = 256;
  EXPECT_NE(
      fault_sentence(Fault::kRewardsEqual, settings, stretch)
          .find("--custom-generate-function-path agent.py:run or --rm-type exact does not tell completions apart"),
      std::string::npos);
}

TEST(SignalSentences, ARewardThatIsAlwaysZeroIsNotBlamedOnLabels) {
  HealthSettings settings;
  settings.grader = "--rm-type none";
  settings.gives_only_zero = true;
  Streak stretch;
  stretch.num_rollouts = 2;
  stretch.num_samples = stretch.num_truncated = 256;
  const std::string line = fault_sentence(Fault::kAnswerNeverRight, settings, stretch);
  EXPECT_NE(line.find("--rm-type none gives every completion 0: give another --rm-type or --custom-rm-path, or "
                      "learn from a teacher: --use-opd with --opd-kl-coef or --opd-loss-coef above 0"),
            std::string::npos)
      << line;
  EXPECT_EQ(line.find("--label-key"), std::string::npos) << line;
}

// With penalties on rewards, equal ones still have a gradient.
TEST(SignalSentences, EqualRewardsBesidePenaltiesAreNotCalledWithoutEffect) {
  HealthSettings settings;
  settings.grader = "--rm-type math";
  Streak stretch;
  stretch.num_rollouts = 2;
  stretch.num_samples = 256;
  stretch.all_advantages_zero = false;
  const std::string plain = fault_sentence(Fault::kRewardsEqual, settings, stretch);
  EXPECT_NE(plain.find("so no completion is preferred to another"), std::string::npos) << plain;
  settings.has_penalties = true;
  const std::string shaped = fault_sentence(Fault::kRewardsEqual, settings, stretch);
  EXPECT_NE(shaped.find("only --kl-coef and --overlong-buffer-len prefer one completion to another"), std::string::npos)
      << shaped;
}

}  // namespace
}  // namespace tandem::rl
