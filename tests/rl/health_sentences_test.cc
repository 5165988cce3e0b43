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

TEST(SignalSentences, ARewardThatIsAlwaysZeroIsNotBlamedOnLabels) {
  HealthSettings settings;
  settings.grader = "--rm-type none";
  settings.gives_only_zero = true;
  Streak stretch;
  stretch.num_rollouts = 2;
  stretch.num_samples = stretch.num_truncated = 256;
  const std::string line = fault_sentence(Fault::kAnswerNeverRight, settings, stretch);
  EXPECT_NE(line.find("--rm-type none gives every completion 0: give another --rm-type or --custom-rm-path, or "
                      "--use-opd"),
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
