// The schedule of phases, and lives of it with a pool in virtual time: whoever joins, leaves, dies or is slow, the
// groups of each rollout and the weights that sampled each token are those that the draws alone decide, and no group is
// older than its bound.
#include "groups/in_flight_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "groups/group_pool.h"
#include "tests/groups/lives.h"
#include "tests/groups/simulated_samplers.h"

namespace tandem::groups {
namespace {

using Groups = std::vector<size_t>;

// Begins as many groups as may begin, numbered from `next`.
void begin_phase(InFlightSchedule& schedule, size_t& next) {
  for (int64_t left = schedule.num_to_begin(); left > 0; --left) schedule.begin(next++);
}

TEST(InFlightSchedule, TakesTheOldestThatHaveEnded) {
  InFlightSchedule schedule({.wanted = 2, .at_once = 4}, 0);
  size_t next = 0;
  begin_phase(schedule, next);
  EXPECT_EQ(next, 4U);
  EXPECT_FALSE(schedule.is_over());
  schedule.decide(3, true);
  EXPECT_FALSE(schedule.is_over()) << "one of two";
  EXPECT_EQ(schedule.num_to_begin(), 0) << "four are in flight";
  schedule.decide(1, true);
  schedule.decide(2, true);
  EXPECT_TRUE(schedule.is_over());
  EXPECT_EQ(schedule.taken(), (Groups{1, 2})) << "group 0 goes on";
  schedule.take(schedule.taken());
  schedule.weights_are_new();
  EXPECT_EQ(schedule.in_flight(), (Groups{0, 3}));
  EXPECT_EQ(schedule.rollout(), 1);
  begin_phase(schedule, next);
  EXPECT_EQ(next, 6U);
  schedule.decide(0, true);
  EXPECT_TRUE(schedule.is_over()) << "with one that had ended before";
  EXPECT_EQ(schedule.taken(), (Groups{0, 3}));
  EXPECT_EQ(schedule.begun_in(0), 0);
  EXPECT_EQ(schedule.begun_in(5), 1);
}

TEST(InFlightSchedule, WaitsForGroupsThatWouldBecomeTooOld) {
  InFlightSchedule schedule({.wanted = 2, .at_once = 4, .max_staleness = 1}, 0);
  size_t next = 0;
  begin_phase(schedule, next);
  schedule.decide(1, true);
  schedule.decide(2, true);
  EXPECT_TRUE(schedule.is_over()) << "the others have a rollout left";
  schedule.take(schedule.taken());
  schedule.weights_are_new();
  begin_phase(schedule, next);
  schedule.decide(4, true);
  schedule.decide(5, true);
  EXPECT_FALSE(schedule.is_over()) << "0 and 3 began a rollout before";
  schedule.decide(3, true);
  EXPECT_FALSE(schedule.is_over());
  schedule.decide(0, true);
  EXPECT_TRUE(schedule.is_over());
  EXPECT_EQ(schedule.taken(), (Groups{0, 3}));
}

// Groups that are due together are taken in any order, but of those that are due earlier enough must go now.
TEST(InFlightSchedule, LeavesNoMoreBehindThanLaterRolloutsTake) {
  InFlightSchedule schedule({.wanted = 1, .at_once = 3, .max_staleness = 2}, 0);
  size_t next = 0;
  begin_phase(schedule, next);
  ASSERT_EQ(next, 3U);
  schedule.decide(2, true);
  EXPECT_TRUE(schedule.is_over()) << "0 and 1 are left for two rollouts";
  schedule.take(schedule.taken());
  schedule.weights_are_new();
  begin_phase(schedule, next);
  schedule.decide(3, true);
  EXPECT_FALSE(schedule.is_over()) << "0 and 1 would be left for one rollout";
  schedule.decide(1, true);
  EXPECT_TRUE(schedule.is_over());
  EXPECT_EQ(schedule.taken(), (Groups{1}));
}

// Between a rollout and its new weights groups begin with the old ones, and count as that old.
TEST(InFlightSchedule, FewerBeginWhileTheRunTrains) {
  InFlightSchedule schedule({.wanted = 2, .at_once = 4, .max_staleness = 1}, 0);
  size_t next = 0;
  begin_phase(schedule, next);
  EXPECT_EQ(next, 4U);
  for (size_t group = 0; group < 4; ++group) schedule.decide(group, true);
  schedule.take(schedule.taken());
  EXPECT_EQ(schedule.num_to_begin(), 0) << "the two that wait are all that the next rollout takes";
  schedule.weights_are_new();
  EXPECT_EQ(schedule.num_to_begin(), 2);
  begin_phase(schedule, next);
  EXPECT_EQ(schedule.begun_in(5), 1);
  EXPECT_TRUE(schedule.is_over());
  schedule.take(schedule.taken());
  EXPECT_EQ(schedule.in_flight(), (Groups{4, 5}));
  EXPECT_EQ(schedule.num_to_begin(), 0);
}

TEST(InFlightSchedule, ADroppedGroupIsReplacedInTheNextPhase) {
  InFlightSchedule schedule({.wanted = 2, .at_once = 2}, 0);
  size_t next = 0;
  begin_phase(schedule, next);
  schedule.decide(0, false);
  schedule.decide(1, true);
  EXPECT_FALSE(schedule.is_over());
  EXPECT_EQ(schedule.num_to_begin(), 1);
  begin_phase(schedule, next);
  schedule.decide(2, true);
  EXPECT_TRUE(schedule.is_over());
  EXPECT_EQ(schedule.taken(), (Groups{1, 2}));
}

TEST(InFlightSchedule, GivesUpWhenALimitIsReachedAndAllHaveEnded) {
  InFlightSchedule schedule({.wanted = 2, .at_once = 4, .limits = {.max_groups = 5}}, 0);
  size_t next = 0;
  begin_phase(schedule, next);
  for (const size_t group : {0, 1, 2}) schedule.decide(group, false);
  EXPECT_EQ(schedule.num_to_begin(), 1) << "the fifth";
  begin_phase(schedule, next);
  schedule.decide(3, true);
  EXPECT_FALSE(schedule.is_over()) << "group 4 may be kept";
  schedule.decide(4, false);
  EXPECT_TRUE(schedule.is_over());
  EXPECT_EQ(schedule.taken(), (Groups{3}));
  schedule.take(schedule.taken());
  schedule.weights_are_new();
  EXPECT_EQ(schedule.num_to_begin(), 4) << "limits are those of one rollout";

  InFlightSchedule in_a_row({.wanted = 1, .at_once = 3, .limits = {.max_dropped_in_a_row = 2}}, 0);
  next = 0;
  begin_phase(in_a_row, next);
  in_a_row.decide(0, false);
  in_a_row.decide(1, false);
  EXPECT_FALSE(in_a_row.is_over()) << "group 2 may be kept";
  EXPECT_EQ(in_a_row.num_to_begin(), 0);
  in_a_row.decide(2, false);
  EXPECT_TRUE(in_a_row.is_over());
  EXPECT_TRUE(in_a_row.taken().empty());
}

// A run as it is drawn before anybody samples.
struct DrawnRun {
  int64_t n, wanted, at_once, phase_tokens, percent_kept, num_rollouts;
  std::optional<int64_t> max_staleness;
  uint64_t seed;

  explicit DrawnRun(uint64_t seed) : seed(seed) {
    Numbers numbers(seed);
    n = 1 + numbers.below(4);
    wanted = 1 + numbers.below(6);
    if (numbers.chance(60)) max_staleness = numbers.below(4);
    const int64_t most = max_staleness ? wanted * (*max_staleness + 1) : 4 * wanted;
    at_once = wanted + numbers.below(most - wanted + 1);
    phase_tokens = 1 + numbers.below(30);
    percent_kept = numbers.chance(30) ? 40 + numbers.below(50) : 100;
    num_rollouts = 3 + numbers.below(5);
  }
  int64_t length(size_t group, size_t member) const {
    // The lengths of most samples are alike, and some are far longer.
    const double u = base::uniform(seed + 1, group, member);
    return 1 + static_cast<int64_t>(u < 0.9 ? 20 * u : 100 * u);
  }
  bool is_kept(size_t group) const {
    return base::uniform(seed + 2, group, 0) * 100.0 < static_cast<double>(percent_kept);
  }
  SimulatedSamplers::Draws draws() const {
    return {.n = n,
            .length = [this](size_t group, size_t member) { return length(group, member); },
            .is_kept = [this](size_t group) { return is_kept(group); }};
  }
};

// Tells the schedule which groups have ended, and drops those that are not kept.
void decide(const std::vector<size_t>& ended, GroupPool& pool, InFlightSchedule& schedule) {
  for (const size_t group : ended) {
    const bool is_kept = pool.group(group).graded.verdict.is_kept;
    schedule.decide(group, is_kept);
    if (!is_kept) pool.take(group);
  }
}

// What a run's rollouts are, as text: the groups of each, and of each sample how many tokens each version gave.
class FlightLife {
 public:
  // Without `timing` one sampler does all in order.
  FlightLife(const DrawnRun& run, std::optional<uint64_t> timing)
      : run_(run),
        timing_(timing.value_or(0)),
        has_troubles_(timing.has_value()),
        pool_(run.n, /*is_graded=*/true),
        samplers_(pool_, run_.draws()),
        schedule_({.wanted = run.wanted, .at_once = run.at_once, .max_staleness = run.max_staleness}, 0) {}

  std::string live() {
    std::string text;
    samplers_.join();
    for (rollout_ = 0; rollout_ < run_.num_rollouts; ++rollout_) {
      while (!schedule_.is_over()) phase();
      for (const size_t group : schedule_.taken()) {
        text += std::to_string(group) + ":";
        EXPECT_TRUE(used_.insert(group).second) << "group " << group << " twice";
        int64_t oldest = rollout_;
        for (const Member& member : pool_.take(group).members) {
          for (const rl::VersionSpan& span : member.sample.versions) {
            text += " " + std::to_string(span.begin) + "@" + std::to_string(span.version);
            oldest = std::min(oldest, static_cast<int64_t>(span.version));
          }
          text += "/" + std::to_string(member.sample.completion.size());
        }
        staleness = std::max(staleness, rollout_ - oldest);
        text += "; ";
      }
      schedule_.take(schedule_.taken());
      schedule_.weights_are_new();
      EXPECT_LE(schedule_.num_in_flight(), run_.at_once);
      text += "\n";
    }
    return text;
  }

  int64_t staleness = 0;  // the largest
  int64_t num_deaths = 0;

 private:
  void phase() {
    for (int64_t left = schedule_.num_to_begin(); left > 0; --left) {
      pool_.open_resting(next_, line(), {.completion = 10, .is_certain = next_ % 3 == 0});
      schedule_.begin(next_++);
    }
    pool_.begin_phase([this](size_t, size_t) { return run_.phase_tokens; });
    Groups ended;
    for (int64_t turn = 0; !pool_.is_idle(); ++turn) {
      ASSERT_LT(turn, 100'000) << "the phase does not end";
      if (has_troubles_) come_and_go();
      for (const SamplerId id : samplers_.ids()) {
        if (has_troubles_ && timing_.chance(40)) continue;
        if (Work* work = samplers_.borrow(id, has_troubles_ ? 1 + timing_.below(2 * run_.n) : run_.n)) sample(*work);
      }
      samplers_.borrow_gradings();
      answer();
      std::ranges::copy(pool_.take_done(), std::back_inserter(ended));
    }
    std::ranges::sort(ended);
    decide(ended, pool_, schedule_);
  }

  void come_and_go() {
    const std::set<SamplerId>& ids = samplers_.ids();
    if (timing_.chance(ids.empty() ? 50 : 5)) samplers_.join();
    if (ids.empty() || !timing_.chance(4)) return;
    std::vector<Work> had = samplers_.lose(*std::next(ids.begin(), timing_.below(std::ssize(ids))));
    ++num_deaths;
    if (timing_.chance(50)) std::ranges::move(had, std::back_inserter(late_));
  }

  // Lets each sample have the tokens of a phase.
  void sample(Work& work) const {
    EXPECT_EQ(work.samples->budgets, std::vector<int64_t>(work.samples->count, run_.phase_tokens));
    for (size_t i = 0; i < work.num_tokens.size(); ++i) {
      const int64_t length = run_.length(work.samples->group, work.samples->first + i);
      EXPECT_LT(work.num_tokens[i], length) << "a sample that has ended is lent again";
      work.num_tokens[i] = std::min(length, work.num_tokens[i] + run_.phase_tokens);
    }
  }

  // Answers some of the loans, in any order; those of the dead are not wanted any more.
  void answer() {
    const auto is_done = [this](const Work&) { return !has_troubles_ || !timing_.chance(60); };
    for (const Work& work : samplers_.take_if(is_done)) EXPECT_TRUE(samplers_.answer(work.sampler, work, rollout_));
    std::erase_if(late_, [&](const Work& work) {
      if (!is_done(work)) return false;
      EXPECT_FALSE(samplers_.answer(work.sampler, work, rollout_));
      return true;
    });
  }

  const DrawnRun run_;
  Numbers timing_;
  const bool has_troubles_;
  GroupPool pool_;
  SimulatedSamplers samplers_;
  InFlightSchedule schedule_;
  std::vector<Work> late_;  // what samplers had that died
  std::set<size_t> used_;
  size_t next_ = 0;
  int64_t rollout_ = 0;
};

TEST(PhaseLives, HaveTheRolloutsThatTheDrawsDecideAndNoneTooOld) {
  int64_t num_deaths = 0, num_stale = 0;
  for (uint64_t seed = 0; seed < kNumLives && !HasFailure(); ++seed) {
    const DrawnRun run(seed);
    FlightLife quiet(run, std::nullopt), busy(run, seed + 17);
    const std::string want = quiet.live();
    EXPECT_EQ(busy.live(), want) << "seed " << seed;
    if (run.max_staleness) {
      EXPECT_LE(quiet.staleness, *run.max_staleness) << "seed " << seed;
    }
    num_deaths += busy.num_deaths;
    num_stale += quiet.staleness > 0 ? 1 : 0;
  }
  EXPECT_GT(num_deaths, static_cast<int64_t>(kNumLives) / 50);
  EXPECT_GT(num_stale, static_cast<int64_t>(kNumLives) / 4) << "nothing was tested";
}

// A run that trains while samplers work: in each turn every sampler gives a sample some tokens or dies, and the trainer
// takes a rollout, trains for some turns, and pauses the samplers for its new weights.
class LiveLife {
 public:
  explicit LiveLife(const DrawnRun& run)
      : run_(run),
        timing_(run.seed + 5),
        pool_(run.n, /*is_graded=*/true),
        samplers_(pool_, run_.draws()),
        schedule_({.wanted = run.wanted, .at_once = run.at_once, .max_staleness = run.max_staleness}, 0) {}

  // Returns the largest age of a token when it was trained.
  int64_t live() {
    int64_t oldest = 0;
    int64_t training_ends = -1;
    pool_.begin_phase();
    for (int64_t now = 0; version_ < run_.num_rollouts; ++now) {
      EXPECT_LT(now, 100'000) << "the run does not end";
      if (now >= 100'000) break;
      for (int64_t left = schedule_.num_to_begin(); left > 0; --left) {
        pool_.open(next_, line(), {.completion = 10, .is_certain = next_ % 3 == 0});
        schedule_.begin(next_++);
      }
      EXPECT_LE(schedule_.num_in_flight(), run_.at_once);
      work();
      if (training_ends < 0 && schedule_.is_over()) {
        for (const size_t group : schedule_.taken()) {
          for (const Member& member : pool_.take(group).members) {
            EXPECT_EQ(std::ssize(member.sample.completion),
                      run_.length(group, member.sample.sample_id % static_cast<uint64_t>(run_.n)));
            for (const rl::VersionSpan& span : member.sample.versions)
              oldest = std::max(oldest, version_ - static_cast<int64_t>(span.version));
          }
          EXPECT_TRUE(used_.insert(group).second);
        }
        schedule_.take(schedule_.taken());
        training_ends = now + timing_.below(60);
      } else if (training_ends == now || (training_ends >= 0 && now > training_ends)) {
        pause();
        ++version_;
        schedule_.weights_are_new();
        pool_.begin_phase();
        training_ends = -1;
      }
    }
    return oldest;
  }

  int64_t num_deaths = 0, num_begun_again = 0;

 private:
  void work() {
    const std::set<SamplerId>& ids = samplers_.ids();
    while (ids.empty() || timing_.chance(2)) samplers_.join();
    if (ids.size() > 1 && timing_.chance(2)) {
      samplers_.lose(*ids.begin());
      ++num_deaths;
    }
    for (const SamplerId id : ids) {
      if (timing_.chance(50)) continue;
      const Work* work = samplers_.borrow(id, 1 + timing_.below(run_.n));
      num_begun_again += work == nullptr || work->samples->begun.empty() ? 0 : 1;
    }
    give_back(samplers_.take_if([this](Work& work) {
      bool has_ended = true;
      for (size_t i = 0; i < work.num_tokens.size(); ++i) {
        const int64_t length = run_.length(work.samples->group, work.samples->first + i);
        work.num_tokens[i] = std::min(length, work.num_tokens[i] + timing_.below(4));
        has_ended &= work.num_tokens[i] == length;
      }
      return has_ended;
    }));
  }

  void pause() {
    pool_.end_phase();
    give_back(samplers_.take_if([](const Work&) { return true; }));
    EXPECT_TRUE(pool_.is_idle());
  }

  // Gives samples back, and grades the groups that have ended with them.
  void give_back(const std::vector<Work>& samples) {
    for (const Work& work : samples) {
      for (const rl::Completion& begun : work.samples->begun)
        EXPECT_TRUE(begun.versions.empty() || begun.versions.back().version <= static_cast<uint64_t>(version_));
      EXPECT_TRUE(samplers_.answer(work.sampler, work, version_));
    }
    samplers_.borrow_gradings();
    for (const Work& work : samplers_.take_if([](const Work& work) { return work.grading.has_value(); }))
      EXPECT_TRUE(samplers_.answer(work.sampler, work));
    decide(pool_.take_done(), pool_, schedule_);
  }

  const DrawnRun run_;
  Numbers timing_;
  GroupPool pool_;
  SimulatedSamplers samplers_;
  InFlightSchedule schedule_;
  std::set<size_t> used_;
  size_t next_ = 0;
  int64_t version_ = 0;  // published, as weights are
};

TEST(LiveLives, NeverTrainOnWhatIsOlderThanTheBound) {
  int64_t num_deaths = 0, num_begun_again = 0, num_at_bound = 0;
  for (uint64_t seed = 0; seed < kNumLives && !HasFailure(); ++seed) {
    DrawnRun run(seed);
    if (!run.max_staleness || *run.max_staleness == 0) run.max_staleness = 1 + static_cast<int64_t>(seed % 4);
    run.at_once = std::min(run.at_once, run.wanted * (*run.max_staleness + 1));
    LiveLife life(run);
    const int64_t oldest = life.live();
    EXPECT_LE(oldest, *run.max_staleness) << "seed " << seed;
    num_at_bound += oldest == *run.max_staleness ? 1 : 0;
    num_deaths += life.num_deaths;
    num_begun_again += life.num_begun_again;
  }
  EXPECT_GT(num_deaths, static_cast<int64_t>(kNumLives) / 10);
  EXPECT_GT(num_begun_again, static_cast<int64_t>(kNumLives) / 10);
  EXPECT_GT(num_at_bound, static_cast<int64_t>(kNumLives) / 10) << "nothing was tested";
}

}  // namespace
}  // namespace tandem::groups
