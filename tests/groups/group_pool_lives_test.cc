// Lives of the pool of groups in virtual time: whoever joins, leaves, dies, is slow, or answers twice or too late,
// every sample is used once, and a rollout has the groups and the contents that the draws alone decide.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "groups/group_pool.h"
#include "groups/schedule.h"
#include "tests/groups/lives.h"
#include "tests/groups/simulated_samplers.h"

namespace tandem::groups {
namespace {

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
        samplers_(pool_, {.n = drawn.n,
                          .length = [](size_t, size_t) { return 0; },
                          .is_kept = [&drawn](size_t group) { return drawn.is_kept[group]; }}),
        schedule_(drawn.wanted, drawn.at_once, drawn.limits),
        stops_at_(numbers_.chance(10) ? numbers_.below(200) : -1) {}

  // Returns the groups taken; none where the life was stopped.
  std::vector<size_t> live() {
    for (int64_t now = 0; !schedule_.is_over(); ++now) {
      EXPECT_LT(now, 100'000) << "the rollout does not end";
      if (now >= 100'000 || now == stops_at_) return stop();
      draw();
      come_and_go(now);
      answer(now);
      pull(now);
      for (Work& work : samplers_.borrow_gradings()) work.due = when(work.sampler, now);
      if (!late_.empty() && numbers_.chance(30)) {
        EXPECT_FALSE(samplers_.answer(late_.back().sampler, late_.back())) << "of one that was given up";
        late_.pop_back();
      }
      decide();
    }
    expect_contents();
    return schedule_.taken();
  }

 private:
  struct Pace {
    int64_t slowness = 1;
    bool is_silent = false;  // it hangs, and is given up sooner or later
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
  int64_t when(SamplerId id, int64_t now) { return now + 1 + paces_.at(id).slowness * numbers_.below(20); }

  void come_and_go(int64_t now) {
    const bool has_troubles = now < 2'000;  // later all are well, or a life need not end
    if (paces_.empty() ? numbers_.chance(20) : numbers_.chance(2))
      paces_[samplers_.join()] = {.slowness = numbers_.chance(20) ? 10 : 1};
    for (auto it = paces_.begin(); it != paces_.end();) {
      auto& [id, pace] = *it;
      if (has_troubles && numbers_.chance(1)) pace.is_silent = true;
      const bool ends = has_troubles ? numbers_.chance(pace.is_silent ? 10 : 2) : pace.is_silent;
      if (!ends) {
        ++it;
        continue;
      }
      std::ranges::move(samplers_.lose(id), std::back_inserter(late_));
      it = paces_.erase(it);
    }
  }

  void answer(int64_t now) {
    const auto is_due = [&](const Work& work) { return work.due <= now && !paces_.at(work.sampler).is_silent; };
    for (const Work& work : samplers_.take_if(is_due)) {
      EXPECT_FALSE(samplers_.answer(work.sampler + 1, work)) << "it is another sampler's";
      const bool is_wanted = samplers_.answer(work.sampler, work);
      if (is_wanted && work.samples) {
        for (size_t i = 0; i < work.samples->count; ++i)
          EXPECT_TRUE(used_.emplace(work.samples->group, work.samples->first + i).second) << "a sample twice";
      }
      if (numbers_.chance(10)) {
        EXPECT_FALSE(samplers_.answer(work.sampler, work)) << "it is said twice";
      }
    }
  }

  void pull(int64_t now) {
    for (const auto& [id, pace] : paces_) {
      const bool is_busy = samplers_.num_borrowed_samples(id) > 2 * drawn_.n;
      if (pace.is_silent || is_busy || numbers_.chance(30)) continue;
      if (Work* work = samplers_.borrow(id, 1 + numbers_.below(2 * drawn_.n))) work->due = when(id, now);
    }
  }

  void decide() {
    for (const size_t group : pool_.take_done()) {
      EXPECT_TRUE(done_.insert(group).second) << "group " << group << " is done twice";
      if (schedule_.may_be_taken(group)) schedule_.decide(group, pool_.group(group).graded.verdict.is_kept);
    }
    for (size_t group = pool_.num_groups(); group > 0 && !schedule_.may_be_taken(group - 1); --group) {
      for (const auto& [id, key] : pool_.abort(group - 1)) EXPECT_TRUE(paces_.contains(id)) << key;
    }
  }

  std::vector<size_t> stop() {
    pool_.abort_all();
    EXPECT_TRUE(pool_.is_idle());
    EXPECT_TRUE(pool_.lend_grading().empty());
    for (const SamplerId id : samplers_.ids()) {
      EXPECT_EQ(pool_.num_loans(id), 0);
      EXPECT_FALSE(pool_.lend(id, 1).has_value());
    }
    for (const Work& work : samplers_.take_if([](const Work&) { return true; }))
      EXPECT_FALSE(samplers_.answer(work.sampler, work));
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
  SimulatedSamplers samplers_;
  Schedule schedule_;
  const int64_t stops_at_;
  const int64_t percent_certain_ = 50 * numbers_.below(3);
  std::map<SamplerId, Pace> paces_;
  std::vector<Work> late_;                    // what samplers had that were given up
  std::set<std::pair<size_t, size_t>> used_;  // group and member
  std::set<size_t> done_;
};

TEST(GroupPoolLives, ARolloutIsTheSameInAnyLife) {
  int64_t num_taken = 0, num_stopped = 0;
  for (uint64_t seed = 0; seed < kNumLives / 4; ++seed) {
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
  EXPECT_GT(num_taken, static_cast<int64_t>(kNumLives) * 8 / 10);
  EXPECT_GT(num_stopped, static_cast<int64_t>(kNumLives) / 100);
}

}  // namespace
}  // namespace tandem::groups
