// Tests of guesses from text that was seen before, and of when they are made.
#include "rollout/drafter.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace tandem::rollout {
namespace {

using Tokens = std::vector<int32_t>;

// Draws the completion of a sample, token by token, and guesses each time. A right guess of n tokens saves n steps.
struct Outcome {
  int64_t num_steps = 0, num_guesses = 0, num_guessed = 0, num_right = 0;
};
Outcome play(Drafter& drafter, size_t sample, const Tokens& completion, int64_t most = 15) {
  Outcome outcome;
  for (size_t known = 1; known < completion.size(); ++outcome.num_steps) {
    drafter.read(sample, std::span(completion).first(known));
    const Tokens guess = drafter.guess(sample, most);
    size_t right = 0;
    while (right < guess.size() && known + right < completion.size() && guess[right] == completion[known + right])
      ++right;
    outcome.num_guesses += guess.empty() ? 0 : 1;
    outcome.num_guessed += std::ssize(guess);
    outcome.num_right += static_cast<int64_t>(right);
    known += right + 1;
  }
  return outcome;
}

TEST(Drafter, GuessesWhatFollowedTheSameTokens) {
  Drafter drafter({1, 2, 3, 4, 5, 6}, 1);
  drafter.read(0, Tokens{9, 1, 2, 3});
  EXPECT_TRUE(drafter.can_guess(0, 7));
  EXPECT_EQ(drafter.guess(0, 2), (Tokens{4, 5}));
  drafter.read(0, Tokens{9, 1, 2, 3, 4, 5, 7, 8});
  EXPECT_FALSE(drafter.can_guess(0, 1));
  EXPECT_EQ(drafter.guess(0, 8), Tokens{}) << "5 7 8 is new";
}

TEST(Drafter, GuessesFromOtherSamplesOfTheGroup) {
  Drafter drafter({1, 2}, 3);
  drafter.read(2, Tokens{50, 51, 52, 53});
  drafter.read(0, Tokens{60, 50, 51, 52});
  EXPECT_EQ(drafter.guess(0, 8), Tokens{53}) << "as far as the other sample's text reaches";
  drafter.read(1, Tokens{1, 2, 50});
  EXPECT_EQ(drafter.guess(1, 8), (Tokens{51, 52, 53})) << "the other sample had these tokens behind the prompt";
}

TEST(Drafter, PrefersTheLongestMatchAndThenTheLast) {
  Drafter drafter({7, 1, 2, 3, 70, 8, 1, 2, 3, 80, 9, 1, 2, 3, 90}, 1);
  drafter.read(0, Tokens{7, 1, 2, 3});
  EXPECT_EQ(drafter.guess(0, 1), Tokens{70});
  drafter.read(0, Tokens{7, 1, 2, 3, 70, 5, 1, 2, 3});
  EXPECT_EQ(drafter.guess(0, 1), Tokens{70}) << "this one was seen last";
}

TEST(Drafter, GoesOnWithARepetition) {
  Drafter drafter({1}, 1);
  drafter.read(0, Tokens{5, 6, 5, 6, 5});
  EXPECT_EQ(drafter.guess(0, 3), (Tokens{6, 5, 6}));
}

TEST(Drafter, GuessesMoreTheMoreWasRight) {
  Tokens text;
  for (int32_t i = 0; i < 400; ++i) text.push_back(i % 20);
  Drafter drafter({1}, 1);
  const Outcome outcome = play(drafter, 0, text);
  EXPECT_LT(outcome.num_steps, 60) << "23 steps until it repeats, and then 16 tokens a step";
  EXPECT_LT(outcome.num_guessed - outcome.num_right, 15) << "the last guess reaches past the end";
}

// The text has the same three tokens again and again, with a new token behind them each time.
TEST(Drafter, StopsWhereGuessesAreWrong) {
  Tokens text;
  for (int32_t i = 0; i < 2000; ++i) text.insert(text.end(), {1, 2, 3, 10 + i});
  Drafter drafter({9}, 1);
  const Outcome outcome = play(drafter, 0, text);
  EXPECT_GT(outcome.num_guesses, 20) << "it tries again now and then";
  // A guess of one token is priced at seven hundredths of a step, which as many drawn tokens pay.
  EXPECT_LE(outcome.num_guesses, outcome.num_steps / 7 + 3);
  EXPECT_LE(outcome.num_guessed, outcome.num_guesses + 4);
}

}  // namespace
}  // namespace tandem::rollout
