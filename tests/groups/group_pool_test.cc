// The pool of groups lends samples and gradings, and takes them back once.
#include "groups/group_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tandem/error.h"
#include "tests/groups/simulated_samplers.h"

namespace tandem::groups {
namespace {

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
  GradedLoan with_a_text = graded(grading);
  with_a_text.texts = {"of which sample?"};
  EXPECT_THROW(pool.take_back(1, std::move(with_a_text)), EnvironmentError);
  EXPECT_THROW(pool.take_back(1, SampledLoan{.key = grading.key, .members = {}}), EnvironmentError);
  EXPECT_TRUE(pool.take_back(1, graded(grading)));
  EXPECT_EQ(pool.take_done(), std::vector<size_t>{0});
}

TEST(GroupPool, TextsThatCameWithGradesAreThoseOfTheSamplesThatHadNone) {
  for (const bool is_kept : {true, false}) {
    GroupPool pool(3, /*is_graded=*/true);
    pool.open(pool.num_groups(), line());
    pool.join(1);
    SampledLoan loan = sampled(pool.lend(1, 3), 3);
    loan.members[1].sample.text.clear();
    pool.take_back(1, std::move(loan));
    GradedLoan grades = graded(pool.lend_grading().at(0).second, is_kept);
    grades.texts = {"", "decoded", ""};
    EXPECT_TRUE(pool.take_back(1, std::move(grades)));
    std::vector<std::string> texts;
    for (const Member& member : pool.take(0).members) texts.push_back(member.sample.text);
    EXPECT_EQ(texts,
              is_kept ? (std::vector<std::string>{"sample 0", "decoded", "sample 2"}) : std::vector<std::string>());
  }
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
  EXPECT_EQ(pool.lost(4), 0);
  EXPECT_EQ(lent(pool, 5, 9), "2[0,4]");
  EXPECT_EQ(lent(pool, 5, 9), "none") << "of the others nothing waits";
  pool.abort_all();
  EXPECT_TRUE(pool.is_idle());
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
    for (SamplerId id = 0; id < num_ranks; ++id) EXPECT_FALSE(pool.lend(id, 1).has_value());
    const auto [least, most] = std::ranges::minmax(tokens_with);
    EXPECT_LE(most - least, std::ranges::max(tokens_of) + num_ranks) << "rounded";
    ASSERT_FALSE(HasFailure());
  }
}

double thread_seconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// A loan looks at every sampler once, which takes microseconds. If it looked at every group for each of them, a loan
// would take some tenths of a second.
TEST(GroupPool, LendsAmongThousandsOfSamplersInMicroseconds) {
  constexpr int64_t kGroups = 4096, kSamplers = 4096, kCompletions = 8;
  const double begin = thread_seconds();
  int64_t num_loans = 0;
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
        ++num_loans;
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
  const double microseconds = 1e6 * (thread_seconds() - begin) / static_cast<double>(num_loans);
  std::printf("%.0f us a loan, with its group\n", microseconds);
  EXPECT_LT(microseconds, 10'000);
}

}  // namespace
}  // namespace tandem::groups
