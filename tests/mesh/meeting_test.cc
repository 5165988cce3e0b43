// Ranks meet through a store that counts what it is asked: N ranks ask for about 3 N values, not for N x N.
#include "mesh/meeting.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "mesh/sealed_store.h"
#include "tandem/error.h"
#include "tests/mesh/counting_store.h"

namespace tandem::mesh {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kSecret = "sixteen letters!";

RankFacts facts_of_rank(int rank, int size) {
  RankFacts facts = {.version = "1.0",
                     .contract = 5,
                     .size = size,
                     .host = fmt::format("gpu{:03d}", rank / 8),
                     .random = fmt::format("{:032x}", 7919 * (rank + 1)),
                     .flags = {},
                     .device = fmt::format("GPU-{:08x}", rank)};
  for (int flag = 0; flag < 150; ++flag) facts.flags[fmt::format("a-flag-of-the-run-{}", flag)] = "its value";
  return facts;
}

struct Met {
  std::string run, error;
  Counts counts;
  double cpu_s = 0.0;
};

double cpu_seconds(clockid_t of) {
  timespec time = {};
  clock_gettime(of, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

using Change = std::function<void(int rank, RankFacts& facts)>;

// Rank 0 looks when all others have said who they are, so what is counted does not depend on the time.
std::vector<Met> meet_all(int size, const std::string& secret = kSecret, const Change& change = {}) {
  Values values;
  std::vector<Met> ranks(static_cast<size_t>(size));
  const auto meet_as = [&](int rank) {
    Met& met = ranks[static_cast<size_t>(rank)];
    const auto counting = c10::make_intrusive<CountingStore>(values);
    c10::intrusive_ptr<c10d::Store> store = counting;
    if (!secret.empty()) store = c10::make_intrusive<SealedStore>(counting, secret, "meeting");
    RankFacts facts = facts_of_rank(rank, size);
    if (change) change(rank, facts);
    const double begin = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
    try {
      met.run = meet(*store, facts,
                     {.rank = rank, .size = size, .has_secret = !secret.empty(), .timeout_s = 60.0, .remedy = "come"});
    } catch (const std::exception& error) {
      met.error = error.what();
    }
    met.cpu_s = cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - begin;
    met.counts = counting->counts;
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < size; ++rank) threads.emplace_back(meet_as, rank);
  while (values.size() < size - 1) std::this_thread::sleep_for(milliseconds(1));
  meet_as(0);
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

Counts sum_of(const std::vector<Met>& ranks) {
  Counts sum;
  for (const Met& rank : ranks) {
    sum.sets += rank.counts.sets;
    sum.gets += rank.counts.gets;
    sum.checks += rank.counts.checks;
    sum.waits += rank.counts.waits;
    sum.bytes_read += rank.counts.bytes_read;
  }
  return sum;
}

// If every rank reads what every other one says, this is 262,144 reads.
TEST(Meeting, Of512RanksTakesThreeCallsARank) {
  constexpr int kRanks = 512;
  const double begin = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
  const std::vector<Met> ranks = meet_all(kRanks);
  const double cpu_s = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - begin;
  const Counts all = sum_of(ranks);
  std::printf("%d ranks: %ld sets, %ld gets, %ld checks, %ld waits, %.1f MB read; CPU: rank 0 %.0f ms, all %.0f ms\n",
              kRanks, all.sets, all.gets, all.checks, all.waits, 1e-6 * static_cast<double>(all.bytes_read),
              1000.0 * ranks[0].cpu_s, 1000.0 * cpu_s);
  // The others wait for rank 0, whose work is to grow as the ranks do: of four times the ranks, where it grew as their
  // square, it would take 16 times as long.
  const double quarter_s = meet_all(kRanks / 4)[0].cpu_s;
  EXPECT_LT(ranks[0].cpu_s, 8.0 * quarter_s) << "of a quarter of the ranks: " << quarter_s << " s";
  for (const Met& rank : ranks) {
    EXPECT_EQ(rank.error, "");
    EXPECT_EQ(rank.run, ranks[0].run);
  }
  EXPECT_EQ(ranks[0].counts.sets, 2);
  EXPECT_EQ(ranks[0].counts.gets, kRanks);
  EXPECT_EQ(ranks[0].counts.checks, kRanks);
  for (int rank = 1; rank < kRanks; ++rank) EXPECT_EQ(ranks[static_cast<size_t>(rank)].counts.all(), 3);
  EXPECT_EQ(all.gets, 2 * kRanks - 1);
}

TEST(Meeting, ADisagreementOf512RanksIsReadByAll) {
  constexpr int kRanks = 512;
  const std::vector<Met> ranks = meet_all(kRanks, kSecret, [](int rank, RankFacts& facts) {
    if (rank >= 300) facts.flags["a-flag-of-the-run-7"] = "another one";
  });
  for (const Met& rank : ranks) {
    EXPECT_EQ(rank.error,
              "rank 300 (gpu037) was started with --a-flag-of-the-run-7 another one, rank 0 (gpu000) with "
              "--a-flag-of-the-run-7 its value; give all ranks the same flags");
  }
  EXPECT_EQ(sum_of(ranks).gets, 2 * kRanks - 1);
}

TEST(Meeting, OfOneLaunchHasATextThatNoOtherHas) {
  const std::vector<Met> first = meet_all(3, ""), again = meet_all(3, "", [](int rank, RankFacts&facts) {
                                                    if (rank == 2) facts.random = std::string(32, 'a');
                                                  });
  EXPECT_EQ(first[0].run.size(), 64U);
  EXPECT_NE(first[0].run, again[0].run);
}

// Meets as rank 1 of 2 in a store in which somebody has answered already.
std::string answered(const std::string& secret,
                     const std::function<void(c10d::Store& sealed, c10d::Store& plain)>& by) {
  const auto plain = c10::make_intrusive<c10d::HashStore>();
  c10::intrusive_ptr<c10d::Store> store = plain;
  if (!secret.empty()) store = c10::make_intrusive<SealedStore>(plain, secret, "meeting");
  by(*store, *plain);
  try {
    return "believed: " +
           meet(*store, facts_of_rank(1, 2), {.rank = 1, .size = 2, .has_secret = !secret.empty(), .timeout_s = 5.0});
  } catch (const EnvironmentError& error) {
    return error.what();
  }
}

std::string answer_with(const std::vector<std::string>& random) {
  return fmt::format(R"({{"random": "{}{}", "user_error": "", "environment_error": ""}})", random.at(0), random.at(1));
}

TEST(Meeting, AnAnswerIsTheOwnLaunchsAndSealed) {
  const std::string own = facts_of_rank(1, 2).random;
  for (const std::string& secret : {std::string(), kSecret}) {
    const auto answer = [&](const std::string& text) {
      return answered(secret, [&](c10d::Store& sealed, c10d::Store& /*plain*/) {
        sealed.set("rank/0", std::string("what rank 0 said"));
        sealed.set("digest", text);
      });
    };
    const std::string others(own.size(), '7');
    EXPECT_THAT(answer(answer_with({others, own})), StartsWith("believed: "));
    EXPECT_EQ(answer(answer_with({others, others})),
              "what rank 0 says to rank 1 of 2 is for the ranks of another launch; wait until that launch has ended, "
              "or give this one another MASTER_PORT");
    for (const std::string& wrong :
         {answer_with({own, others}), answer_with({others, own + own}), answer_with({"", own})}) {
      EXPECT_THAT(answer(wrong), HasSubstr("is for the ranks of another launch"));
    }
    for (const char* text : {"", "{}", "[]", R"({"random": 7})"}) {
      EXPECT_THAT(answer(text), StartsWith("rank 0 does not say how the ranks were started"));
    }
  }
}

TEST(Meeting, AnAnswerThatAStrangerWroteIsRefused) {
  const std::string text = answer_with({std::string(32, '7'), facts_of_rank(1, 2).random});
  const auto forged_under = [&](const std::string& forged) {
    return answered(kSecret, [&](c10d::Store& sealed, c10d::Store& plain) {
      sealed.set("rank/0", std::string("what rank 0 said"));
      plain.set("digest", forged);
    });
  };
  EXPECT_THAT(forged_under(text), StartsWith("TANDEM_SECRET_FILE: 'digest' of the ranks' store was not written with"));
  EXPECT_THAT(forged_under("sealed:" + std::string(64, '0') + text), StartsWith("TANDEM_SECRET_FILE: 'digest'"));
}

// A store that is gone once rank 1 has left, as rank 0 takes it along.
class StoreUntilFarewell final : public c10d::HashStore {
 public:
  using HashStore::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    if (key == "left/1") is_gone_ = true;
    HashStore::set(key, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    if (is_gone_) throw BugError("rank 0 has ended");
    return HashStore::get(key);
  }

 private:
  bool is_gone_ = false;
};

// Rank 1 once left first and read what rank 0 had said of itself afterwards: on a busy machine rank 0 had ended.
TEST(Meeting, ARankWithAnotherSecretReadsWhyBeforeItLeaves) {
  const auto store = c10::make_intrusive<StoreUntilFarewell>();
  SealedStore theirs(store, "a second secret!", "meeting"), own(store, kSecret, "meeting");
  theirs.set("rank/0", std::string("what rank 0 said"));
  theirs.set("digest", std::string("what rank 0 answers"));
  try {
    meet(own, facts_of_rank(1, 2), {.rank = 1, .size = 2, .has_secret = true, .timeout_s = 5.0});
    FAIL() << "another secret is taken for the own one";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), StartsWith("TANDEM_SECRET_FILE: 'rank/0' of the ranks' store was not written with"));
  }
}

TEST(Meeting, ARankThatWaitsInVainNamesWhoIsMissing) {
  Values values;
  CountingStore store(values);
  store.set("rank/2", std::string("here"));
  try {
    meet(store, facts_of_rank(1, 4), {.rank = 1, .size = 4, .timeout_s = 0.1, .remedy = "share /tmp"});
    FAIL() << "nobody else came";
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(), StartsWith("ranks 0, 3 of 4 have not joined within "));
  }
  // The next one reads it.
  EXPECT_THAT(std::string(reinterpret_cast<const char*>(store.get("digest").data()), store.get("digest").size()),
              HasSubstr("ranks 0, 3 of 4 have not joined"));
}

}  // namespace
}  // namespace tandem::mesh
