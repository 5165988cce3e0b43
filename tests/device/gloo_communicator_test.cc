// Tests of Gloo between processes: the conformance tests of every communicator, and when a missing rank is reported, in
// which words.
#include "device/cpu/gloo_communicator.h"

#include <ATen/ops/empty.h>
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "base/check.h"
#include "device/registry.h"
#include "tests/device/communicator_conformance.h"
#include "tests/device/forked_ranks.h"
#include "tests/device/forked_store.h"

namespace tandem::device {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Runs `body` on `size` processes, whose communicators' waits end after timeout_s.
std::vector<std::string> run_gloo(int size, double timeout_s, const Body& body) {
  const Listener listener;
  return run_forked(size, [&](int rank) {
    const auto store = open_store(listener, rank);
    const auto ranks =
        make_gloo_communicator(store, "test", {.rank = rank, .size = size, .timeout_s = timeout_s, .interface = {}});
    return outcome_of(body, *ranks);
  });
}

std::vector<RankKind> gloo_kinds() {
  std::vector<RankKind> kinds;
  for (const int size : {1, 2, 3, 8}) {
    kinds.push_back({.name = "gloo", .size = size, .are_processes = true, .run = [](int ranks, const Body& body) {
                       return run_gloo(ranks, 60, body);
                     }});
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorConformance, testing::ValuesIn(gloo_kinds()), rank_kind_name);

void exchange_a_byte(Communicator& ranks) { any_of(ranks, true); }

TEST(GlooCommunicator, ARankThatDoesNotAnswerIsNamedInTime) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> outcomes = run_gloo(3, 1.5, [](Communicator& ranks) {
    exchange_a_byte(ranks);
    if (ranks.rank() == 2) std::this_thread::sleep_for(std::chrono::seconds(3));
    exchange_a_byte(ranks);
  });
  EXPECT_THAT(outcomes[0], HasSubstr("rank 2"));
  EXPECT_THAT(outcomes[1], HasSubstr("rank 2"));
  // The first rank to notice tells the others.
  const std::string words = "PeerLost: test: exchange: rank 2 did not answer within 1.5 s; waited 1.";
  EXPECT_TRUE(outcomes[0].starts_with(words) || outcomes[1].starts_with(words)) << outcomes[0] << '\n' << outcomes[1];
  EXPECT_THAT(outcomes[2], StartsWith("PeerLost: "));
  EXPECT_LT(seconds_since(start), 15);
}

TEST(GlooCommunicator, ARankThatIsStoppedIsNamedInTime) {
  const std::vector<std::string> outcomes = run_gloo(3, 1.5, [](Communicator& ranks) {
    exchange_a_byte(ranks);
    if (ranks.rank() == 1) {
      std::thread([process = getpid()] {  // a stopped process cannot end itself
        if (fork() == 0) {
          sleep(3);
          kill(process, SIGKILL);
          _exit(0);
        }
        raise(SIGSTOP);
      })
          .join();
    }
    for (;;) exchange_a_byte(ranks);
  });
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    EXPECT_THAT(outcomes[rank], StartsWith("PeerLost: "));
    EXPECT_THAT(outcomes[rank], HasSubstr("rank 1"));
  }
}

TEST(GlooCommunicator, WhoDoesNotComeIsNamed) {
  const Listener listener;
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> outcomes = run_forked(3, [&](int rank) {
    const auto store = open_store(listener, rank);
    if (rank == 1) return std::string();
    const double timeout_s = rank == 0 ? 2 : 1;  // rank 0 has the store
    const GlooSettings settings{.rank = rank, .size = 3, .timeout_s = timeout_s, .interface = {}};
    return outcome_of([&](Communicator&) { make_gloo_communicator(store, "hosts", settings); }, *solo_communicator());
  });
  EXPECT_EQ(outcomes[0], "PeerLost: hosts: joining: rank 1 did not come within 2 s");
  EXPECT_EQ(outcomes[2], "PeerLost: hosts: joining: rank 1 did not come within 1 s");
  EXPECT_LT(seconds_since(start), 15);
}

TEST(GlooCommunicator, AnAddressThatIsNotOfThisHostIsToldInOneLine) {
  const Listener listener;
  const std::vector<std::string> outcomes = run_forked(1, [&](int) {
    const auto store = open_store(listener, 0);
    const GlooSettings settings{.size = 2, .address = "203.0.113.7", .interface = {}};
    return outcome_of([&](Communicator&) { make_gloo_communicator(store, "hosts", settings); }, *solo_communicator());
  });
  EXPECT_THAT(outcomes[0], StartsWith("hosts: cannot listen on 203.0.113.7: "));
  EXPECT_THAT(outcomes[0], testing::EndsWith("give an address or a network interface of this host"));
  EXPECT_EQ(outcomes[0].find('\n'), std::string::npos);
}

TEST(GlooCommunicator, SeveralOfOneStoreDoNotMix) {
  const Listener listener;
  const std::vector<std::string> outcomes = run_forked(3, [&](int rank) {
    const auto store = open_store(listener, rank);
    const GlooSettings settings{.rank = rank, .size = 3, .interface = {}};
    const auto one = make_gloo_communicator(store, "one", settings),
               two = make_gloo_communicator(store, "two", settings);
    std::string wrong;
    const auto ask = [&](Communicator& ranks, const std::string& word) {
      for (int i = 0; i < 100; ++i) {
        for (const std::string& text : all_gather_text(ranks, word)) {
          if (text != word) wrong = text;
        }
      }
    };
    std::thread other([&] { ask(*two, "second"); });
    ask(*one, "the first");
    other.join();
    return wrong;
  });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

TEST(GlooCommunicator, WaitingTakesNoProcessorTime) {
  const std::vector<std::string> outcomes = run_gloo(2, 60, [](Communicator& ranks) {
    exchange_a_byte(ranks);
    const double before = processor_seconds();
    if (ranks.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    exchange_a_byte(ranks);
    const double taken = processor_seconds() - before;
    if (taken > 0.2) throw std::runtime_error(fmt::format("waiting for a second took {} s", taken));
  });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
}

TEST(GlooCommunicator, TheRegistryMakesNone) {
  EXPECT_THROW(make_communicator({.backend = "cpu"}, {.hosts = *solo_communicator()}), BugError);
}

// Prints the time of a start, and of an exchange.
TEST(GlooCommunicator, StartsInSeconds) {
  const Listener listener;
  const std::vector<std::string> outcomes = run_forked(8, [&](int rank) {
    const auto store = open_store(listener, rank);
    const GlooSettings settings{.rank = rank, .size = 8, .interface = {}};
    const auto start = std::chrono::steady_clock::now();
    const auto ranks = make_gloo_communicator(store, "hosts", settings);
    const double taken = seconds_since(start);
    exchange_a_byte(*ranks);
    return fmt::format("{:.3f}", taken);
  });
  for (const std::string& outcome : outcomes) EXPECT_LT(std::stod(outcome), 10);
  fmt::print("8 ranks: connected in {} s\n", outcomes[0]);
  run_gloo(2, 60, [](Communicator& ranks) {
    const at::Tensor mine = at::empty({1024}, at::kByte), theirs = at::empty({1024}, at::kByte);
    constexpr int kTimes = 1000;
    exchange_a_byte(ranks);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kTimes; ++i) ranks.start_exchange({{mine}, {mine}}, {{theirs}, {theirs}})->wait();
    if (ranks.rank() == 0) fmt::print("2 ranks: 1 KiB in {:.0f} us\n", seconds_since(start) / kTimes * 1e6);
  });
}

}  // namespace
}  // namespace tandem::device
