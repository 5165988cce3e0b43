// Checks that the gradients of preference losses are the derivatives of their losses, and what bounds them.
#include "rl/preference_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tandem/error.h"

namespace tandem::rl {
namespace {

std::vector<JudgedAnswer> draw(std::mt19937& random, const PreferenceConfig& config, size_t items) {
  std::normal_distribution<double> normal(0.0, 3.0);
  std::vector<JudgedAnswer> answers;
  for (size_t i = 0; i < items * static_cast<size_t>(config.answers_of_item()); ++i) {
    answers.push_back({.logp = normal(random),
                       .ref_logp = normal(random),
                       .num_tokens = 1 + static_cast<int64_t>(random() % 7),
                       .is_desirable = config.takes_pairs() ? i % 2 == 0 : random() % 2 == 0});
  }
  return answers;
}

TEST(PreferenceLoss, GradientsAreDerivatives) {
  for (const std::string_view loss : kPreferenceLosses) {
    if (loss == "none") continue;
    PreferenceConfig config{.loss = std::string(loss), .beta = 0.4, .desirable_weight = 1.3, .undesirable_weight = 0.6};
    if (loss == "robust") config.label_smoothing = 0.2;
    for (uint32_t seed = 1; seed <= 5; ++seed) {
      SCOPED_TRACE(testing::Message() << loss << ", seed " << seed);
      std::mt19937 random(seed);
      std::vector<JudgedAnswer> answers = draw(random, config, 4);
      constexpr double kKl = 0.7, kStep = 1e-5;
      const PreferenceTerms terms = preference_terms(config, answers, kKl);
      ASSERT_EQ(terms.gradients.size(), answers.size());
      for (size_t i = 0; i < answers.size(); ++i) {
        answers[i].logp += kStep;
        const double above = preference_terms(config, answers, kKl).loss;
        answers[i].logp -= 2 * kStep;
        const double below = preference_terms(config, answers, kKl).loss;
        answers[i].logp += kStep;
        EXPECT_NEAR(terms.gradients[i], (above - below) / (2 * kStep), 1e-7) << "answer " << i;
      }
    }
  }
}

TEST(PreferenceLoss, IsLogTwoWherePolicyAndReferenceAgree) {
  const std::vector<JudgedAnswer> pair = {{.logp = -3, .ref_logp = -3},
                                          {.logp = -5, .ref_logp = -5, .is_desirable = false}};
  const PreferenceTerms terms = preference_terms({.loss = "sigmoid", .beta = 0.2}, pair);
  EXPECT_DOUBLE_EQ(terms.loss, std::log(2.0));
  EXPECT_DOUBLE_EQ(terms.gradients[0], -0.1);
  EXPECT_DOUBLE_EQ(terms.gradients[1], 0.1);
}

TEST(PreferenceLoss, StaysFiniteFarFromTheReference) {
  for (const double logp : {-1e6, 1e6}) {
    const std::vector<JudgedAnswer> pair = {{.logp = logp}, {.logp = -logp, .is_desirable = false}};
    for (const char* const loss : {"sigmoid", "robust", "hinge", "ipo"}) {
      const PreferenceTerms terms = preference_terms({.loss = loss, .label_smoothing = 0.0}, pair);
      EXPECT_TRUE(std::isfinite(terms.loss) && std::isfinite(terms.gradients[0])) << loss << " at " << logp;
    }
    const PreferenceTerms kto = preference_terms({.loss = "kto"}, pair);
    EXPECT_TRUE(std::isfinite(kto.loss) && std::isfinite(kto.gradients[1])) << "kto at " << logp;
  }
}

// A hinge once gave 0 for them, with a slope of 0: a step that looked like any other.
TEST(PreferenceLoss, HidesNoLogprobThatIsNoNumber) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const char* const loss : {"sigmoid", "robust", "hinge", "ipo", "kto"}) {
    for (const bool is_of_reference : {false, true}) {
      std::vector<JudgedAnswer> pair = {{.logp = -3, .ref_logp = -3},
                                        {.logp = -5, .ref_logp = -5, .is_desirable = false}};
      (is_of_reference ? pair[1].ref_logp : pair[1].logp) = nan;
      const PreferenceTerms terms = preference_terms({.loss = loss, .label_smoothing = 0.0}, pair);
      EXPECT_TRUE(std::isnan(terms.loss)) << loss;
      EXPECT_TRUE(std::isnan(terms.gradients[1])) << loss;
    }
  }
}

TEST(PreferenceLoss, RefusesAnswersThatAreNoPair) {
  const std::vector<JudgedAnswer> two_chosen(2);
  EXPECT_THROW(preference_terms({.loss = "sigmoid"}, two_chosen), BugError);
  EXPECT_THROW(preference_terms({.loss = "sigmoid"}, std::vector<JudgedAnswer>(1)), BugError);
}

}  // namespace
}  // namespace tandem::rl
