// The pool of groups, and lives of it in virtual time: whoever joins, leaves, dies, is slow, or answers twice or too
// late, every sample is used once, and a rollout has the groups and the contents that the draws alone decide.
#include "groups/group_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "groups/schedule.h"
#include "tandem/error.h"

namespace tandem::groups {
namespace {

const session::PromptLine& line() {
  static const session::PromptLine one = {.record = {}, .prompt = rl::make_prompt({1, 2, 3})};
  return one;
}

// Returns the answer to a loan. Samples of group g have the ids from g * n on.
SampledLoan sampled(const SampleLoan& loan, int64_t n) {
  SampledLoan result = {.key = loan.key, .members = {}};
  for (size_t i = 0; i < loan.count; ++i) {
    Member& member = result.members.emplace_back();
    member.sample.sample_id = loan.group * static_cast<uint64_t>(n) + loan.first + i;
    member.sample.text = "sample " + std::to_string(member.sample.sample_id);
  }
  return result;
}
SampledLoan sampled(const std::optional<SampleLoan>& loan, int64_t n) { return sampled(loan.value(), n); }

GradedLoan graded(const GradeLoan& loan, bool is_kept = true) {
  GradedLoan result = {.key = loan.key, .graded = {}};
  result.graded.verdict.is_kept = is_kept;
  result.graded.is_judged = true;
  if (!is_kept) return result;
  for (const Member& member : loan.members) {
    reward::Grade& grade = result.graded.grades.emplace_back();
    grade.sample_id = member.sample.sample_id;
    grade.reason = "grade of " + member.sample.text;
  }
  return result;
}

// Returns "GROUP[FIRST,COUNT]" for the next loan, or "none".
std::string lent(GroupPool& pool, SamplerId sampler, int64_t num_samples) {
  const std::optional<SampleLoan> loan = pool.lend(sampler, num_samples);
  if (!loan) return "none";
  return std::to_string(loan->group) + "[" + std::to_string(loan->first) + "," + std::to_string(loan->count) + "]";
}

TEST(GroupPool, ASamplerAloneGetsWholeGroupsInTheirOrder) {
  GroupPool pool(4, /*is_graded=*/false);
  for (int i = 0; i < 3; ++i) pool.open(pool.num_groups(), line());
  EXPECT_EQ(lent(pool, 7, 4), "none") << "who has not joined";
  pool.join(7);
  EXPECT_EQ(lent(pool, 7, 0), "none");
  EXPECT_EQ(lent(pool, 7, 100), "0[0,4]");
  EXPECT_EQ(lent(pool, 7, 3), "1[0,3]");
  EXPECT_EQ(lent(pool, 7, 3), "1[3,1]");
  EXPECT_EQ(pool.num_waiting_samples(), 4);
  EXPECT_EQ(lent(pool, 7, 4), "2[0,4]");
  EXPECT_EQ(lent(pool, 7, 4), "none");
  EXPECT_EQ(pool.num_loans(7), 4);
}

TEST(GroupPool, SeveralSamplersShareEachGroupWhileOthersWait) {
  GroupPool pool(5, /*is_graded=*/false);
  for (int i = 0; i < 2; ++i) pool.open(pool.num_groups(), line());
  pool.join(1);
  pool.join(2);
  EXPECT_EQ(lent(pool, 1, 100), "0[0,3]") << "half of it, rounded up";
  EXPECT_EQ(lent(pool, 1, 100), "1[0,3]");
  EXPECT_EQ(lent(pool, 2, 1), "0[3,1]");
  EXPECT_EQ(lent(pool, 1, 100), "0[4,1]") << "what waits is lent, where it has its share of all that waits";
  EXPECT_EQ(lent(pool, 2, 100), "1[3,2]");
  EXPECT_EQ(lent(pool, 2, 100), "none");
}

// Each sampler that has a part of a group prefills its prompt.
TEST(GroupPool, AGroupWithALongPromptIsSharedByFewer) {
  // The group decodes 8 x 100 tokens, so a tenth of them, 80 tokens, may be prefilled in addition.
  const std::vector<std::pair<int64_t, std::string>> cases = {
      {26, "0[0,2]"}, {40, "0[0,3]"}, {80, "0[0,4]"}, {81, "0[0,8]"}};
  for (const auto& [prompt, expected] : cases) {
    GroupPool pool(8, /*is_graded=*/false);
    pool.open(pool.num_groups(), line(), {.completion = 100, .prompt = prompt});
    for (SamplerId sampler = 1; sampler <= 4; ++sampler) pool.join(sampler);
    EXPECT_EQ(lent(pool, 1, 100), expected) << prompt;
  }
}

TEST(GroupPool, TheLongestExpectedGoesFirst) {
  GroupPool pool(1, /*is_graded=*/false);
  pool.open(pool.num_groups(), line(), {.completion = 10, .prompt = 3});
  pool.open(pool.num_groups(), line(), {.completion = 30, .prompt = 1});
  pool.open(pool.num_groups(), line(), {.completion = 10, .prompt = 9});
  pool.open(pool.num_groups(), line(), {.completion = 10, .prompt = 3});
  pool.join(1);
  std::string order;
  for (int i = 0; i < 4; ++i) order += lent(pool, 1, 1);
  EXPECT_EQ(order, "1[0,1]2[0,1]0[0,1]3[0,1]");
}

TEST(GroupPool, AGroupOfCertainLengthIsLentWhole) {
  GroupPool pool(8, /*is_graded=*/false);
  pool.open(0, line(), {.completion = 100, .prompt = 3, .is_certain = true});
  pool.open(1, line(), {.completion = 90, .prompt = 3});
  for (SamplerId sampler = 1; sampler <= 4; ++sampler) pool.join(sampler);
  EXPECT_EQ(lent(pool, 1, 100), "0[0,8]");
  EXPECT_EQ(lent(pool, 1, 100), "1[0,2]") << "its length is not certain";
  EXPECT_EQ(lent(pool, 2, 100), "1[2,2]");
}

TEST(GroupPool, GroupsOfCertainLengthAreDealtEvenly) {
  GroupPool pool(1, /*is_graded=*/false);
  for (const int64_t tokens : {80, 70, 60, 50, 40, 30, 20, 10})
    pool.open(pool.num_groups(), line(), {.completion = tokens, .is_certain = true});
  for (SamplerId sampler = 1; sampler <= 4; ++sampler) pool.join(sampler);
  std::string order;
  for (const SamplerId sampler : {1, 1, 2, 2, 3, 3, 4, 4}) order += lent(pool, sampler, 2) + " ";
  EXPECT_EQ(order, "0[0,1] none 1[0,1] none 2[0,1] none 3[0,1] 4[0,1] ") << "an even share is 90 tokens";
  order.clear();
  for (const SamplerId sampler : {1, 2, 3, 4, 1, 2, 4, 1, 2}) order += lent(pool, sampler, 1) + " ";
  EXPECT_EQ(order, "7[0,1] 6[0,1] 5[0,1] none none none none none none ");
}

TEST(GroupPool, TheTwoLongestAreNotForOneSamplerWhileAnotherHasNone) {
  GroupPool pool(2, /*is_graded=*/false);
  for (int64_t tokens = 50; tokens > 38; --tokens)
    pool.open(pool.num_groups(), line(), {.completion = tokens, .is_certain = true});
  for (SamplerId sampler = 1; sampler <= 4; ++sampler) pool.join(sampler);
  std::string order;
  for (const SamplerId sampler : {1, 1, 2, 2, 3, 3, 4, 4}) order += lent(pool, sampler, 2) + " ";
  EXPECT_EQ(order, "0[0,2] 4[0,2] 1[0,2] 5[0,2] 2[0,2] 6[0,2] 3[0,2] 7[0,2] ");
}

// A sampler may be slow, or hang until it is given up: it is behind, but the others do not wait for it.
TEST(GroupPool, NobodyWaitsForASamplerThatDoesNotAsk) {
  GroupPool pool(2, /*is_graded=*/false);
  for (size_t i = 0; i < 20; ++i) pool.open(i, line(), {.completion = 10, .is_certain = true});
  for (SamplerId sampler = 1; sampler <= 3; ++sampler) pool.join(sampler);
  const SampleLoan hangs = pool.lend(3, 2).value();
  size_t num_lent = 0, num_rounds = 0;
  for (; num_rounds < 20 && num_lent < 19; ++num_rounds) {
    std::vector<std::pair<SamplerId, SampleLoan>> loans;
    for (const SamplerId sampler : {1, 2}) {
      while (const std::optional<SampleLoan> loan = pool.lend(sampler, 2)) loans.emplace_back(sampler, *loan);
    }
    for (const auto& [sampler, loan] : loans) EXPECT_TRUE(pool.take_back(sampler, sampled(loan, 2)));
    num_lent += loans.size();
  }
  EXPECT_EQ(num_lent, 19U);
  EXPECT_EQ(num_rounds, 4U) << "12 groups, then 4, 2 and 1";
  EXPECT_EQ(pool.lost(3), 1);
  EXPECT_EQ(lent(pool, 2, 2), std::to_string(hangs.group) + "[0,2]") << "whole again";
}

TEST(GroupPool, ALoanComesBackOnceAndFromItsBorrowerAlone) {
  GroupPool pool(2, /*is_graded=*/false);
  pool.open(pool.num_groups(), line());
  pool.join(1);
  pool.join(2);
  const SampleLoan loan = pool.lend(1, 1).value(), other = pool.lend(2, 1).value();
  EXPECT_FALSE(pool.take_back(2, sampled(loan, 2))) << "whose loan it is not";
  EXPECT_TRUE(pool.take_back(1, sampled(loan, 2)));
  EXPECT_FALSE(pool.take_back(1, sampled(loan, 2))) << "twice";
  EXPECT_TRUE(pool.take_done().empty());
  EXPECT_TRUE(pool.take_back(2, sampled(other, 2)));
  EXPECT_EQ(pool.take_done(), std::vector<size_t>{0});
  EXPECT_TRUE(pool.take_done().empty()) << "each once";
  EXPECT_EQ(pool.group(0).members[0].sample.text, "sample 0");
  EXPECT_EQ(pool.group(0).members[1].sample.text, "sample 1");
  EXPECT_EQ(pool.group(0).members[1].sample.prompt, line().prompt) << "the same object for all";
  EXPECT_EQ(pool.num_sampled(), 1);
}

TEST(GroupPool, WhatALostSamplerHadWaitsAgain) {
  GroupPool pool(4, /*is_graded=*/true);
  for (int i = 0; i < 2; ++i) pool.open(pool.num_groups(), line());
  pool.join(1);
  const SampleLoan first = pool.lend(1, 4).value();
  const SampleLoan second = pool.lend(1, 4).value();
  EXPECT_TRUE(pool.take_back(1, sampled(first, 4)));
  const std::vector<std::pair<SamplerId, GradeLoan>> gradings = pool.lend_grading();
  ASSERT_EQ(gradings.size(), 1U);
  pool.join(2);
  EXPECT_EQ(pool.lost(1), 2) << "samples of one group and the grading of another";
  EXPECT_EQ(pool.lost(1), 0);
  EXPECT_FALSE(pool.take_back(1, sampled(second, 4))) << "a sampler that was given up may still answer";
  EXPECT_FALSE(pool.take_back(1, graded(gradings[0].second)));
  EXPECT_EQ(lent(pool, 2, 4), "1[0,4]");
  const std::vector<std::pair<SamplerId, GradeLoan>> again = pool.lend_grading();
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(again[0].first, 2);
  EXPECT_TRUE(pool.take_back(2, graded(again[0].second)));
  EXPECT_EQ(pool.take_done(), std::vector<size_t>{0});
}

TEST(GroupPool, AGroupIsGradedByWhoSampledMostOfIt) {
  GroupPool pool(3, /*is_graded=*/true);
  for (int i = 0; i < 2; ++i) pool.open(pool.num_groups(), line());
  pool.join(1);
  pool.join(2);
  const auto mostly = pool.lend(2, 2), rest = pool.lend(1, 1);
  const auto alike = pool.lend(1, 1), more = pool.lend(2, 2);
  EXPECT_TRUE(pool.take_back(1, sampled(rest, 3)));
  EXPECT_TRUE(pool.lend_grading().empty()) << "it is not whole";
  EXPECT_TRUE(pool.take_back(2, sampled(mostly, 3)));
  const auto gradings = pool.lend_grading();
  ASSERT_EQ(gradings.size(), 1U);
  EXPECT_EQ(gradings[0].first, 2);
  EXPECT_EQ(gradings[0].second.members.size(), 3U);
  EXPECT_TRUE(pool.lend_grading().empty()) << "once";
  EXPECT_TRUE(pool.take_back(1, sampled(alike, 3)));
  EXPECT_TRUE(pool.take_back(2, sampled(more, 3)));
  pool.lost(2);
  const auto others = pool.lend_grading();
  ASSERT_EQ(others.size(), 2U) << "the grading that was lost too";
  EXPECT_EQ(others[0].first, 1);
  EXPECT_EQ(others[1].first, 1);
}

TEST(GroupPool, AGradingWaitsForASampler) {
  GroupPool pool(1, /*is_graded=*/true);
  pool.open(pool.num_groups(), line());
  pool.join(1);
  pool.take_back(1, sampled(pool.lend(1, 1), 1));
  pool.lost(1);
  EXPECT_TRUE(pool.lend_grading().empty());
  pool.join(2);
  ASSERT_EQ(pool.lend_grading().size(), 1U);
}

TEST(GroupPool, AGroupThatIsAbortedIsNotGraded) {
  GroupPool pool(1, /*is_graded=*/true);
  for (int i = 0; i < 2; ++i) pool.open(pool.num_groups(), line());
  pool.join(1);
  for (int i = 0; i < 2; ++i) pool.take_back(1, sampled(pool.lend(1, 1), 1));
  EXPECT_TRUE(pool.abort(0).empty()) << "nobody has it";
  const auto gradings = pool.lend_grading();
  ASSERT_EQ(gradings.size(), 1U);
  EXPECT_EQ(gradings[0].second.group, 1U);
  EXPECT_EQ(pool.abort(1), (std::vector<std::pair<SamplerId, uint64_t>>{{1, gradings[0].second.key}}));
  EXPECT_FALSE(pool.take_back(1, graded(gradings[0].second)));
  EXPECT_TRUE(pool.take_done().empty());
}

TEST(GroupPool, WhatWasNotLentIsRefusedAndStaysOnLoan) {
  GroupPool pool(2, /*is_graded=*/true);
  pool.open(pool.num_groups(), line());
  pool.join(1);
  const SampleLoan loan = pool.lend(1, 2).value();
  SampledLoan short_one = sampled(loan, 2);
  short_one.members.pop_back();
  EXPECT_THROW(pool.take_back(1, std::move(short_one)), EnvironmentError);
  EXPECT_THROW(pool.take_back(1, GradedLoan{.key = loan.key, .graded = {}}), EnvironmentError);
  EXPECT_EQ(pool.num_loans(1), 1);
  EXPECT_TRUE(pool.take_back(1, sampled(loan, 2)));
  const GradeLoan grading = pool.lend_grading().at(0).second;
  GradedLoan without = graded(grading);
  without.graded.grades.pop_back();
  EXPECT_THROW(pool.take_back(1, std::move(without)), EnvironmentError);
  EXPECT_THROW(pool.take_back(1, SampledLoan{.key = grading.key, .members = {}}), EnvironmentError);
  EXPECT_TRUE(pool.take_back(1, graded(grading)));
  EXPECT_EQ(pool.take_done(), std::vector<size_t>{0});
}

TEST(GroupPool, AbortTakesAGroupFromAllWhoHaveSomeOfIt) {
  GroupPool pool(4, /*is_graded=*/true);
  for (int i = 0; i < 3; ++i) pool.open(pool.num_groups(), line());
  pool.join(4);
  pool.join(5);
  const SampleLoan mine = pool.lend(4, 2).value(), theirs = pool.lend(5, 1).value();
  auto ended = pool.abort(0);
  std::ranges::sort(ended);
  EXPECT_EQ(ended, (std::vector<std::pair<SamplerId, uint64_t>>{{4, mine.key}, {5, theirs.key}}));
  EXPECT_TRUE(pool.abort(0).empty());
  EXPECT_TRUE(pool.abort(1).empty()) << "nobody has it";
  EXPECT_EQ(pool.num_cut(), 1) << "groups that had begun";
  EXPECT_FALSE(pool.take_back(4, sampled(mine, 4)));
  EXPECT_EQ(pool.num_waiting_samples(), 4);
  EXPECT_EQ(pool.lost(4), 0);
  pool.abort_all();
  EXPECT_EQ(pool.num_waiting_samples(), 0);
  EXPECT_EQ(lent(pool, 5, 1), "none");
}

TEST(GroupPool, ADroppedGroupKeepsNoSamples) {
  GroupPool pool(2, /*is_graded=*/true);
  pool.open(pool.num_groups(), line());
  pool.join(1);
  pool.take_back(1, sampled(pool.lend(1, 2), 2));
  const GradeLoan grading = pool.lend_grading().at(0).second;
  EXPECT_TRUE(pool.take_back(1, graded(grading, /*is_kept=*/false)));
  EXPECT_TRUE(pool.group(0).members.empty());
  EXPECT_TRUE(pool.group(0).graded.grades.empty());
  EXPECT_TRUE(pool.group(0).graded.is_judged);
  EXPECT_EQ(pool.num_graded(), 2);
}

class Numbers {
 public:
  explicit Numbers(uint64_t seed) : seed_(seed) {}
  int64_t below(int64_t end) {
    return static_cast<int64_t>(base::uniform(seed_, 0, next_++) * static_cast<double>(end));
  }
  bool chance(int64_t percent) { return below(100) < percent; }

 private:
  uint64_t seed_, next_ = 0;
};

// A rollout as it is drawn before anybody samples.
struct Drawn {
  int64_t n = 0, wanted = 0, at_once = 0;
  bool is_graded = false;
  SearchLimits limits;
  std::vector<bool> is_kept;

  explicit Drawn(uint64_t seed) {
    Numbers numbers(seed);
    n = 1 + numbers.below(6);
    wanted = 1 + numbers.below(10);
    is_graded = numbers.chance(80);
    const int64_t percent_kept = is_graded && numbers.chance(50) ? 20 + numbers.below(70) : 100;
    at_once = wanted + (percent_kept < 100 ? numbers.below(12) : 0);
    limits.max_groups = percent_kept < 100 && numbers.chance(30) ? wanted + numbers.below(10) : 400;
    for (int i = 0; i < 500; ++i) is_kept.push_back(numbers.chance(percent_kept));
  }
  // The groups that a rollout is made of.
  std::vector<size_t> taken() const {
    std::vector<size_t> groups;
    for (size_t i = 0; std::ssize(groups) < wanted && static_cast<int64_t>(i) < limits.max_groups; ++i)
      if (is_kept[i]) groups.push_back(i);
    return groups;
  }
};

// One life of a pool. `drawn` says what is sampled, `timing` who samples when.
class Life {
 public:
  Life(const Drawn& drawn, uint64_t timing)
      : drawn_(drawn),
        numbers_(timing),
        pool_(drawn.n, drawn.is_graded),
        schedule_(drawn.wanted, drawn.at_once, drawn.limits),
        stops_at_(numbers_.chance(10) ? numbers_.below(200) : -1) {}

  // Returns the groups taken; none where the life was stopped.
  std::vector<size_t> live() {
    for (int64_t now = 0; !schedule_.is_over(); ++now) {
      EXPECT_LT(now, 100'000) << "the rollout does not end";
      if (now >= 100'000 || now == stops_at_) return stop();
      draw();
      come_and_go(now);
      for (auto& [id, sampler] : samplers_) answer(id, sampler, now);
      for (auto& [id, sampler] : samplers_) pull(id, sampler, now);
      for (auto& [id, loan] : pool_.lend_grading()) {
        EXPECT_TRUE(samplers_.contains(id)) << "a grading for nobody";
        samplers_.at(id).answers.emplace(when(samplers_.at(id), now), Answer{std::nullopt, std::move(loan)});
      }
      if (!late_.empty() && numbers_.chance(30)) {
        EXPECT_FALSE(give_back(late_.back().first, late_.back().second)) << "of one that was given up";
        late_.pop_back();
      }
      decide();
    }
    expect_contents();
    return schedule_.taken();
  }

 private:
  struct Answer {
    std::optional<SampleLoan> samples;
    std::optional<GradeLoan> grading;
  };
  struct Sampler {
    int64_t slowness = 1;
    int64_t num_samples = 0;  // on loan
    bool is_silent = false;   // it hangs, and is given up sooner or later
    std::multimap<int64_t, Answer> answers = {};
  };

  void draw() {
    for (int64_t left = schedule_.num_to_draw(); left > 0; --left) {
      pool_.open(pool_.num_groups(), line(),
                 {.completion = numbers_.below(3),
                  .prompt = numbers_.below(3),
                  .is_certain = numbers_.chance(percent_certain_)});
      schedule_.draw();
    }
  }
  int64_t when(const Sampler& sampler, int64_t now) { return now + 1 + sampler.slowness * numbers_.below(20); }

  void come_and_go(int64_t now) {
    const bool has_troubles = now < 2'000;  // later all are well, or a life need not end
    if (samplers_.empty() ? numbers_.chance(20) : numbers_.chance(2)) {
      samplers_[next_id_] = {.slowness = numbers_.chance(20) ? 10 : 1};
      pool_.join(next_id_++);
    }
    for (auto it = samplers_.begin(); it != samplers_.end();) {
      auto& [id, sampler] = *it;
      if (has_troubles && numbers_.chance(1)) sampler.is_silent = true;
      const bool ends = has_troubles ? numbers_.chance(sampler.is_silent ? 10 : 2) : sampler.is_silent;
      if (!ends) {
        ++it;
        continue;
      }
      for (auto& [at, answer] : sampler.answers) late_.emplace_back(id, std::move(answer));
      const int64_t num_loans = pool_.num_loans(id);
      EXPECT_EQ(pool_.lost(id), num_loans);
      EXPECT_EQ(pool_.num_loans(id), 0);
      it = samplers_.erase(it);
    }
  }

  void answer(SamplerId id, Sampler& sampler, int64_t now) {
    while (!sampler.is_silent && !sampler.answers.empty() && sampler.answers.begin()->first <= now) {
      const Answer given = std::move(sampler.answers.extract(sampler.answers.begin()).mapped());
      if (given.samples) sampler.num_samples -= static_cast<int64_t>(given.samples->count);
      EXPECT_FALSE(give_back(id + 1, given)) << "it is another sampler's";
      const bool is_wanted = give_back(id, given);
      if (is_wanted && given.samples) {
        for (size_t i = 0; i < given.samples->count; ++i)
          EXPECT_TRUE(used_.emplace(given.samples->group, given.samples->first + i).second) << "a sample twice";
      }
      if (numbers_.chance(10)) {
        EXPECT_FALSE(give_back(id, given)) << "it is said twice";
      }
    }
  }
  bool give_back(SamplerId id, const Answer& answer) {
    if (answer.samples) return pool_.take_back(id, sampled(*answer.samples, drawn_.n));
    return pool_.take_back(id, graded(*answer.grading, drawn_.is_kept[answer.grading->group]));
  }

  void pull(SamplerId id, Sampler& sampler, int64_t now) {
    if (sampler.is_silent || sampler.num_samples > 2 * drawn_.n || numbers_.chance(30)) return;
    const std::optional<SampleLoan> loan = pool_.lend(id, 1 + numbers_.below(2 * drawn_.n));
    if (!loan) return;
    sampler.num_samples += static_cast<int64_t>(loan->count);
    sampler.answers.emplace(when(sampler, now), Answer{loan, std::nullopt});
  }

  void decide() {
    for (const size_t group : pool_.take_done()) {
      EXPECT_TRUE(done_.insert(group).second) << "group " << group << " is done twice";
      if (schedule_.may_be_taken(group)) schedule_.decide(group, pool_.group(group).graded.verdict.is_kept);
    }
    for (size_t group = pool_.num_groups(); group > 0 && !schedule_.may_be_taken(group - 1); --group) {
      for (const auto& [id, key] : pool_.abort(group - 1)) EXPECT_TRUE(samplers_.contains(id)) << key;
    }
  }

  std::vector<size_t> stop() {
    pool_.abort_all();
    EXPECT_EQ(pool_.num_waiting_samples(), 0);
    EXPECT_TRUE(pool_.lend_grading().empty());
    for (auto& [id, sampler] : samplers_) {
      EXPECT_EQ(pool_.num_loans(id), 0);
      EXPECT_FALSE(pool_.lend(id, 1).has_value());
      for (const auto& [at, given] : sampler.answers) EXPECT_FALSE(give_back(id, given));
    }
    return {};
  }

  void expect_contents() {
    for (const size_t index : schedule_.taken()) {
      const Group& group = pool_.group(index);
      ASSERT_EQ(std::ssize(group.members), drawn_.n);
      for (int64_t i = 0; i < drawn_.n; ++i) {
        const std::string text = "sample " + std::to_string(static_cast<int64_t>(index) * drawn_.n + i);
        ASSERT_EQ(group.members[static_cast<size_t>(i)].sample.text, text);
        if (!drawn_.is_graded) continue;
        ASSERT_EQ(group.graded.grades.at(static_cast<size_t>(i)).reason, "grade of " + text);
      }
    }
  }

  const Drawn& drawn_;
  Numbers numbers_;
  GroupPool pool_;
  Schedule schedule_;
  const int64_t stops_at_;
  const int64_t percent_certain_ = 50 * numbers_.below(3);
  std::map<SamplerId, Sampler> samplers_;
  SamplerId next_id_ = 0;
  std::vector<std::pair<SamplerId, Answer>> late_;  // answers of samplers that were given up
  std::set<std::pair<size_t, size_t>> used_;        // group and member
  std::set<size_t> done_;
};

TEST(GroupPool, ARolloutIsTheSameInAnyLife) {
  int64_t num_taken = 0, num_stopped = 0;
  for (uint64_t seed = 0; seed < 2'500; ++seed) {
    const Drawn drawn(seed);
    for (uint64_t timing = 4 * seed; timing < 4 * seed + 4; ++timing) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", timing " << timing);
      const std::vector<size_t> taken = Life(drawn, timing).live();
      ASSERT_FALSE(HasFailure());
      if (taken.empty()) {
        ++num_stopped;
        continue;
      }
      ASSERT_EQ(taken, drawn.taken());
      ++num_taken;
    }
  }
  EXPECT_GT(num_taken, 8'000);
  EXPECT_GT(num_stopped, 100);
}

// In any order of asking, no rank has more than another by more than a group.
TEST(GroupPool, RanksHaveEvenShares) {
  for (uint64_t seed = 0; seed < 2'000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Numbers numbers(seed);
    const int64_t n = 1 + numbers.below(8), num_ranks = 1 + numbers.below(8), num_groups = 1 + numbers.below(40);
    GroupPool pool(n, /*is_graded=*/false);
    std::vector<int64_t> tokens_of;  // each group
    for (int64_t i = 0; i < num_groups; ++i) {
      const int64_t tokens = 1 + numbers.below(1 + numbers.below(400));
      pool.open(static_cast<size_t>(i), line(), {.completion = tokens, .is_certain = true});
      tokens_of.push_back(n * tokens);
    }
    std::vector<int64_t> tokens_with(static_cast<size_t>(num_ranks));
    for (SamplerId id = 0; id < num_ranks; ++id) pool.join(id);
    std::set<size_t> lent_groups;
    for (int64_t turn = 0; std::ssize(lent_groups) < num_groups; ++turn) {
      ASSERT_LT(turn, 100'000) << "there is always somebody who may have more";
      const SamplerId id = numbers.below(num_ranks);
      const std::optional<SampleLoan> loan = pool.lend(id, 2 * n);
      if (!loan) continue;
      EXPECT_EQ(loan->count, static_cast<size_t>(n)) << "whole";
      EXPECT_TRUE(lent_groups.insert(loan->group).second) << "once";
      tokens_with[static_cast<size_t>(id)] += tokens_of[loan->group];
    }
    EXPECT_EQ(pool.num_waiting_samples(), 0);
    const auto [least, most] = std::ranges::minmax(tokens_with);
    EXPECT_LE(most - least, std::ranges::max(tokens_of) + num_ranks) << "rounded";
    ASSERT_FALSE(HasFailure());
  }
}

// A pool that looked at every sampler, or at every group, for each loan would take hours.
TEST(GroupPool, LendsAmongThousandsOfSamplersWithoutAScan) {
  constexpr int64_t kGroups = 4096, kSamplers = 4096, kCompletions = 8;
  const base::Clock::time_point begin = base::Clock::now();
  GroupPool pool(kCompletions, /*is_graded=*/true);
  Numbers numbers(3);
  for (int64_t i = 0; i < kGroups; ++i)
    pool.open(pool.num_groups(), line(), {.completion = numbers.below(1000), .is_certain = i % 2 == 0});
  for (SamplerId id = 0; id < kSamplers; ++id) pool.join(id);
  std::vector<std::vector<SampleLoan>> loans(kSamplers);
  size_t num_done = 0;
  for (int64_t round = 0; num_done < kGroups; ++round) {
    ASSERT_LT(round, 100);
    for (SamplerId id = 0; id < kSamplers; ++id) {
      for (int64_t room = kCompletions; room > 0;) {
        const std::optional<SampleLoan> loan = pool.lend(id, room);
        if (!loan) break;
        room -= static_cast<int64_t>(loan->count);
        loans[static_cast<size_t>(id)].push_back(*loan);
      }
    }
    if (round == 0) {  // a tenth is lost, and comes back under another name
      for (SamplerId id = 0; id < kSamplers; id += 10) {
        EXPECT_GT(pool.lost(id), 0);
        loans[static_cast<size_t>(id)].clear();
        pool.join(id);
      }
    }
    for (SamplerId id = 0; id < kSamplers; ++id) {
      for (const SampleLoan& loan : std::exchange(loans[static_cast<size_t>(id)], {}))
        ASSERT_TRUE(pool.take_back(id, sampled(loan, kCompletions)));
    }
    for (auto& [id, loan] : pool.lend_grading()) ASSERT_TRUE(pool.take_back(id, graded(loan)));
    num_done += pool.take_done().size();
  }
  EXPECT_EQ(num_done, static_cast<size_t>(kGroups));
  EXPECT_LT(base::seconds_since(begin), 10.0);
}

}  // namespace
}  // namespace tandem::groups
