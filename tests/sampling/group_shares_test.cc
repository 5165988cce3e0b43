// Who samples which group: each exactly once, by ranks that begin with equal shares and are not left idle.
#include "sampling/group_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <queue>

#include "base/rng.h"

namespace tandem::sampling {
namespace {

using Lengths = std::vector<GroupLength>;

TEST(GroupShares, TheLongestComesFirst) {
  EXPECT_EQ(longest_first(Lengths{{{}, 5}, {{}, 9}, {{}, 5}}), (std::vector<size_t>{1, 0, 2})) << "the longest prompt";
  // The average of those that are known is 300.
  EXPECT_EQ(longest_first(Lengths{{100, 9}, {{}, 1}, {500, 1}, {{}, 2}, {300, 2}}),
            (std::vector<size_t>{2, 3, 4, 1, 0}));
}

class Numbers {
 public:
  explicit Numbers(uint64_t seed) : seed_(seed) {}
  double uniform() { return base::uniform(seed_, 0, next_++); }
  int64_t below(int64_t end) { return static_cast<int64_t>(uniform() * static_cast<double>(end)); }

 private:
  uint64_t seed_, next_ = 0;
};

// Ranks whose engines run so many groups at once, in virtual time.
struct Life {
  int num_ranks = 1;
  int64_t num_at_once = 1;         // that an engine has room for
  std::vector<double> speeds;      // of ranks, in tokens per second
  std::vector<double> begins;      // of ranks, in seconds
  std::vector<int64_t> lengths;    // of groups, as they turn out
  std::vector<GroupLength> known;  // before
};

struct Outcome {
  std::vector<int> times_sampled;  // by group
  std::vector<double> ends;        // of ranks: when the last of their groups was finished
  double idle_share = 0.0, longest_s = 0.0;
};

Life drawn_life(uint64_t seed) {
  Numbers numbers(seed);
  Life life;
  life.num_ranks = static_cast<int>(1 + numbers.below(8));
  life.num_at_once = 1 + numbers.below(8);
  for (int rank = 0; rank < life.num_ranks; ++rank) {
    life.speeds.push_back(50.0 * (0.7 + 0.3 * numbers.uniform()));
    life.begins.push_back(0.5 * numbers.uniform());
  }
  for (int64_t left = numbers.below(80); left > 0; --left) {
    const double length = std::exp(4.0 + 1.2 * (numbers.uniform() + numbers.uniform()));
    life.lengths.push_back(static_cast<int64_t>(length));
    GroupLength known{.completion = {}, .prompt = numbers.below(300)};
    if (numbers.uniform() < 0.8) known.completion = static_cast<int64_t>(length * (0.5 + numbers.uniform()));
    life.known.push_back(known);
  }
  return life;
}

Outcome lived(const Life& life, bool is_dealt_by_number = false) {
  const auto n = static_cast<size_t>(life.num_ranks);
  std::vector<int64_t> tickets(n);
  Outcome outcome{.times_sampled = std::vector<int>(life.lengths.size()), .ends = life.begins};
  std::vector<GroupShares> shares;
  for (int rank = 0; rank < life.num_ranks; ++rank)
    shares.emplace_back(life.known, rank, life.num_ranks,
                        [&](int owner) { return tickets[static_cast<size_t>(owner)]++; });
  using Event = std::pair<double, size_t>;  // a rank begins, or has finished a group
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  std::vector<int64_t> under_way(n, 0);
  for (size_t rank = 0; rank < n; ++rank) events.emplace(life.begins[rank], rank);
  std::vector<bool> has_begun(n, false);
  std::vector<size_t> next_by_number(n);
  std::iota(next_by_number.begin(), next_by_number.end(), size_t{0});
  const auto next = [&](size_t rank) -> std::optional<size_t> {
    if (!is_dealt_by_number) return shares[rank].next();
    const size_t group = next_by_number[rank];
    next_by_number[rank] += n;
    return group < life.lengths.size() ? std::optional(group) : std::nullopt;
  };
  while (!events.empty()) {
    const auto [now, rank] = events.top();
    events.pop();
    if (has_begun[rank]) --under_way[rank];
    has_begun[rank] = true;
    outcome.ends[rank] = std::max(outcome.ends[rank], now);
    const int64_t most =
        std::min(life.num_at_once, is_dealt_by_number ? life.num_at_once : shares[rank].most_at_once());
    while (under_way[rank] < most) {
      const std::optional<size_t> group = next(rank);
      if (!group) break;
      ++outcome.times_sampled.at(*group);
      ++under_way[rank];
      const double seconds = static_cast<double>(life.lengths[*group]) / life.speeds[rank];
      outcome.longest_s = std::max(outcome.longest_s, static_cast<double>(life.lengths[*group]) / 35.0);
      events.emplace(now + seconds, rank);
    }
  }
  const double last = std::ranges::max(outcome.ends);
  double idle_s = 0.0;
  for (const double end : outcome.ends) idle_s += last - end;
  if (last > 0) outcome.idle_share = idle_s / (last * static_cast<double>(n));
  return outcome;
}

TEST(GroupShares, InDrawnLivesEachGroupIsSampledOnceAndRanksAreNotLeftIdle) {
  constexpr uint64_t kLives = 10'000, kCompared = 1'000;
  double idle = 0.0, idle_by_number = 0.0;
  for (uint64_t seed = 0; seed < kLives; ++seed) {
    const Life life = drawn_life(seed);
    const Outcome outcome = lived(life);
    ASSERT_TRUE(std::ranges::all_of(outcome.times_sampled, [](int times) { return times == 1; })) << "seed " << seed;
    // A rank is done when nothing is left to take: what others still have is under way by then.
    if (std::ssize(life.lengths) >= life.num_ranks) {
      for (const double end : outcome.ends)
        ASSERT_LE(std::ranges::max(outcome.ends) - end, outcome.longest_s + 0.5) << "seed " << seed;
    }
    if (seed >= kCompared) continue;
    idle += outcome.idle_share / kCompared;
    idle_by_number += lived(life, /*is_dealt_by_number=*/true).idle_share / kCompared;
  }
  std::printf("[   info   ] idle %.3f of the ranks' time; with every N-th group for each rank %.3f\n", idle,
              idle_by_number);
  EXPECT_LT(idle, 0.75 * idle_by_number);
}

TEST(GroupShares, AllBeginWithEqualShares) {
  for (int num_ranks = 1; num_ranks <= 9; ++num_ranks) {
    for (int64_t num_groups = 0; num_groups <= 40; ++num_groups) {
      const Lengths lengths(static_cast<size_t>(num_groups));
      int64_t sum = 0;
      for (int rank = 0; rank < num_ranks; ++rank) {
        const int64_t share = GroupShares(lengths, rank, num_ranks, {}).most_at_once();
        EXPECT_GE(share, num_groups / num_ranks);
        EXPECT_LE(share, (num_groups + num_ranks - 1) / num_ranks);
        sum += share;
      }
      EXPECT_EQ(sum, num_groups);
    }
  }
}

}  // namespace
}  // namespace tandem::sampling
