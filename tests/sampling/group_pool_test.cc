// Lives of a queue and its workers in virtual time: whoever joins, leaves, dies, hangs, or answers twice or too late,
// every group is used once, and the run ends.
#include "sampling/rollout_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/rng.h"
#include "tests/base/soak.h"

namespace tandem::sampling {
namespace {

TEST(RolloutQueue, LendsInOrderAndTakesEachGroupOnce) {
  RolloutQueue queue;
  for (size_t index = 0; index < 3; ++index) queue.open(index);
  EXPECT_EQ(queue.pull(7), 0);
  EXPECT_EQ(queue.pull(8), 1);
  EXPECT_FALSE(queue.push(8, 0)) << "who has not the loan";
  EXPECT_TRUE(queue.push(7, 0));
  EXPECT_FALSE(queue.push(7, 0)) << "twice";
  EXPECT_EQ(queue.pull(7), 2);
  EXPECT_EQ(queue.pull(7), std::nullopt);
}

TEST(RolloutQueue, GroupsWaitInTheOrderInWhichTheyWereOpened) {
  RolloutQueue queue;
  for (const size_t index : {2, 0, 1}) queue.open(index);
  EXPECT_EQ(queue.pull(1), 2);
  EXPECT_EQ(queue.pull(2), 0);
  EXPECT_EQ(queue.lost(1), 1U);
  EXPECT_EQ(queue.pull(2), 2);
  EXPECT_EQ(queue.pull(2), 1);
}

TEST(RolloutQueue, LoansOfALostWorkerGoFirst) {
  RolloutQueue queue;
  for (size_t index = 0; index < 5; ++index) queue.open(index);
  queue.pull(1);
  queue.pull(1);
  queue.pull(2);
  EXPECT_EQ(queue.lost(1), 2U);
  EXPECT_FALSE(queue.push(1, 0)) << "a worker that was given up may still answer";
  EXPECT_EQ(queue.pull(2), 0);
  EXPECT_EQ(queue.pull(2), 1);
  EXPECT_EQ(queue.pull(2), 3);
}

TEST(RolloutQueue, AbortTakesAGroupFromWhoeverHasIt) {
  RolloutQueue queue;
  for (size_t index = 0; index < 2; ++index) queue.open(index);
  queue.pull(4);
  EXPECT_EQ(queue.abort(0), 4);
  EXPECT_EQ(queue.abort(1), std::nullopt);
  EXPECT_FALSE(queue.push(4, 0));
  EXPECT_EQ(queue.num_waiting() + queue.num_on_loan(), 0);
  EXPECT_EQ(queue.lost(4), 0U);
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

// A worker as the conductor sees it: what it will say, and when.
struct Worker {
  bool is_silent = false;  // hangs: it is given up after kPatience
  int64_t last_heard = 0;
  std::multimap<int64_t, size_t> answers;  // time -> group
};

constexpr int64_t kPatience = 50;

// One rollout; returns how often each group was used.
std::map<size_t, int> live(uint64_t seed) {
  Numbers numbers(seed);
  const int64_t num_groups = 1 + numbers.below(24);
  RolloutQueue queue;
  for (int64_t i = 0; i < num_groups; ++i) queue.open(static_cast<size_t>(i));
  std::map<size_t, int> used;
  std::map<WorkerId, Worker> workers;
  std::multimap<WorkerId, size_t> late;  // answers of workers that were given up
  WorkerId next_id = 0;
  for (int64_t now = 0; std::ssize(used) < num_groups; ++now) {
    EXPECT_LT(now, 100'000) << "seed " << seed << ": the rollout does not end";
    if (now >= 100'000) break;
    const bool troubles = now < 2'000;  // later everybody is well, or a life need not end
    if (workers.empty() ? numbers.chance(20) : numbers.chance(1)) workers[next_id++].last_heard = now;
    for (auto it = workers.begin(); it != workers.end();) {
      auto& [id, worker] = *it;
      const auto end_of_it = [&] {
        for (const auto& [when, index] : worker.answers) late.emplace(id, index);
        queue.lost(id);
        it = workers.erase(it);
      };
      if (troubles && numbers.chance(2)) {  // dies, or leaves
        end_of_it();
        continue;
      }
      if (troubles && numbers.chance(1)) worker.is_silent = true;
      if (worker.is_silent && queue.has_loans(id) && now - worker.last_heard > kPatience) {
        end_of_it();
        continue;
      }
      if (!worker.is_silent) {
        worker.last_heard = now;
        while (!worker.answers.empty() && worker.answers.begin()->first <= now) {
          const size_t index = worker.answers.begin()->second;
          worker.answers.erase(worker.answers.begin());
          used[index] += queue.push(id, index) ? 1 : 0;
          if (numbers.chance(10)) used[index] += queue.push(id, index) ? 1 : 0;  // says it twice
        }
        if (std::ssize(worker.answers) < 3) {
          if (const std::optional<size_t> index = queue.pull(id))
            worker.answers.emplace(now + 1 + numbers.below(40), *index);
        }
      } else if (!queue.has_loans(id) && std::ssize(workers) == 1) {
        end_of_it();  // nobody waits for it, and somebody else joins
        continue;
      }
      ++it;
    }
    if (!late.empty() && numbers.chance(30)) {
      used[late.begin()->second] += queue.push(late.begin()->first, late.begin()->second) ? 1 : 0;
      late.erase(late.begin());
    }
    std::erase_if(used, [](const auto& entry) { return entry.second == 0; });
  }
  EXPECT_EQ(queue.num_waiting() + queue.num_on_loan(), 0) << "seed " << seed;
  return used;
}

TEST(RolloutQueue, EveryGroupIsUsedOnceInAnyLife) {
  for (int64_t seed = 0; seed < 10'000; ++seed) {
    for (const auto& [index, times] : live(static_cast<uint64_t>(seed)))
      ASSERT_EQ(times, 1) << "seed " << seed << ", group " << index;
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace tandem::sampling
