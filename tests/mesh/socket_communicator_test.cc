// Tests of sockets between processes: the conformance tests of every communicator, and when a missing rank is reported,
// in which words.
#include "mesh/socket_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "base/clock.h"
#include "device/waits_for_samples.h"
#include "tests/device/ranks/communicator_conformance.h"
#include "tests/device/ranks/forked_ranks.h"
#include "tests/mesh/socket_ranks.h"

namespace tandem::mesh {
namespace {

using device::Body;
using device::Communicator;
using device::outcome_of;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kSecret = "thirty-two letters of one secret";

struct Limits {
  double wait_s = 60.0, silence_s = 60.0;
  std::string secret = "";
};

std::vector<std::string> run_sockets(int size, const Limits& limits, const Body& body) {
  ForkedConnections connections(size, limits.secret);
  return device::run_forked(
      size,
      [&](int rank) {
        const auto ranks = make_socket_communicator({.name = "test",
                                                     .rank = rank,
                                                     .connections = connections.take(rank),
                                                     .wait_s = limits.wait_s,
                                                     .silence_s = limits.silence_s});
        return outcome_of(body, *ranks);
      },
      [&] { connections.close(); });
}

std::vector<device::RankKind> socket_kinds() {
  std::vector<device::RankKind> kinds;
  for (const int size : {1, 2, 3, 8}) {
    kinds.push_back({.name = "sockets", .size = size, .are_processes = true, .run = [](int ranks, const Body& body) {
                       return run_sockets(ranks, {}, body);
                     }});
  }
  return kinds;
}

}  // namespace
}  // namespace tandem::mesh

namespace tandem::device {
INSTANTIATE_TEST_SUITE_P(Sockets, CommunicatorConformance, testing::ValuesIn(mesh::socket_kinds()), rank_kind_name);
}  // namespace tandem::device

namespace tandem::mesh {
namespace {

void exchange_a_byte(Communicator& ranks) { device::any_of(ranks, true); }

// Stops this process for good; another one kills it later.
void freeze() {
  const pid_t process = getpid();
  if (fork() == 0) {
    sleep(6);
    kill(process, SIGKILL);
    _exit(0);
  }
  raise(SIGSTOP);
}

TEST(SocketCommunicator, ARankThatDoesNotAnswerIsNamedInTime) {
  const base::Clock::time_point start = base::Clock::now();
  const std::vector<std::string> outcomes = run_sockets(3, {.wait_s = 1.5}, [](Communicator& ranks) {
    exchange_a_byte(ranks);
    if (ranks.rank() == 2) std::this_thread::sleep_for(std::chrono::seconds(4));
    exchange_a_byte(ranks);
  });
  EXPECT_THAT(outcomes[0], HasSubstr("rank 2"));
  EXPECT_THAT(outcomes[1], HasSubstr("rank 2"));
  // The first rank to notice tells the others.
  const std::string words = "PeerLost: test: exchange: rank 2 did not answer within 1.5 s; waited 1.";
  EXPECT_TRUE(outcomes[0].starts_with(words) || outcomes[1].starts_with(words)) << outcomes[0] << '\n' << outcomes[1];
  EXPECT_THAT(outcomes[2], StartsWith("PeerLost: "));
  EXPECT_LT(base::seconds_since(start), 15);
}

// A rank that samples for long is waited for, and one that is frozen meanwhile is not.
TEST(SocketCommunicator, AWaitForSamplesHasNoLimit) {
  const auto body = [](Communicator& ranks) {
    exchange_a_byte(ranks);
    if (ranks.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
    const device::WaitsForSamples samples(ranks);
    exchange_a_byte(ranks);
  };
  for (const std::string& outcome : run_sockets(2, {.wait_s = 0.5, .silence_s = 10.0}, body)) EXPECT_EQ(outcome, "");
}

TEST(SocketCommunicator, ARankThatIsFrozenIsMissedInAWaitForSamples) {
  const std::vector<std::string> outcomes = run_sockets(3, {.silence_s = 2.0}, [](Communicator& ranks) {
    exchange_a_byte(ranks);
    if (ranks.rank() == 0) freeze();
    const device::WaitsForSamples samples(ranks);
    exchange_a_byte(ranks);
  });
  for (const size_t rank : {size_t{1}, size_t{2}}) {
    EXPECT_THAT(outcomes[rank], StartsWith("PeerLost: test: exchange: rank 0 "));
  }
  const std::string words = "rank 0 has said nothing for 2 s: its process is stopped or frozen; waited ";
  EXPECT_TRUE(outcomes[1].find(words) != std::string::npos || outcomes[2].find(words) != std::string::npos)
      << outcomes[1] << '\n'
      << outcomes[2];
}

// Rank 0 samples and exchanges nothing meanwhile: it only looks.
TEST(SocketCommunicator, ALossIsSaidToOneThatLooksAndExchangesNothing) {
  const base::Clock::time_point start = base::Clock::now();
  const std::vector<std::string> outcomes = run_sockets(2, {.silence_s = 2.0}, [&](Communicator& ranks) {
    exchange_a_byte(ranks);
    if (ranks.rank() == 1) freeze();
    while (base::seconds_since(start) < 10.0) {
      ranks.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  EXPECT_THAT(outcomes[0], StartsWith("PeerLost: test: exchange: rank 1 has said nothing for 2 s"));
}

// This is Ctrl-Z and fg: all were stopped, and none of them has been silent.
TEST(SocketCommunicator, RanksThatWereStoppedTogetherGoOn) {
  const std::vector<std::string> outcomes = run_sockets(2, {.wait_s = 3.0, .silence_s = 3.0}, [](Communicator& ranks) {
    exchange_a_byte(ranks);
    const pid_t process = getpid();
    if (fork() == 0) {
      usleep(200'000);
      kill(process, SIGSTOP);
      sleep(5);
      kill(process, SIGCONT);
      _exit(0);
    }
    if (ranks.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
    for (int i = 0; i < 3; ++i) exchange_a_byte(ranks);
  });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
}

// In another build, or with other flags, sizes that do not fit end both, and no tensor gets bytes of another.
TEST(SocketCommunicator, PiecesOfAnotherSizeAreRefused) {
  const std::vector<std::string> outcomes = run_sockets(2, {}, [](Communicator& ranks) {
    const at::Tensor mine = at::empty({ranks.rank() == 0 ? 10 : 12}, at::kByte), theirs = at::empty({10}, at::kByte);
    ranks.start_exchange({{mine}, {mine}}, {{theirs}, {theirs}})->wait();
    exchange_a_byte(ranks);
  });
  EXPECT_THAT(outcomes[0],
              HasSubstr("rank 1 sends 12 bytes where 10 were to come: start all ranks with the same build"));
  EXPECT_THAT(outcomes[1], StartsWith("PeerLost: "));
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

TEST(SocketCommunicator, WaitingTakesNoProcessorTime) {
  const std::vector<std::string> outcomes = run_sockets(2, {}, [](Communicator& ranks) {
    exchange_a_byte(ranks);
    const double before = processor_seconds();
    if (ranks.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    exchange_a_byte(ranks);
    const double taken = processor_seconds() - before;
    if (taken > 0.2) throw std::runtime_error(fmt::format("waiting for a second took {} s", taken));
  });
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
}

// A rank that is ahead sends more than a kernel or a session holds, and is then read from as far as it is asked for.
TEST(SocketCommunicator, ARankThatIsFarAheadIsReadInTime) {
  for (const std::string& secret : {std::string(), kSecret}) {
    const std::vector<std::string> outcomes =
        run_sockets(2, {.wait_s = 20.0, .secret = secret}, [](Communicator& ranks) {
          constexpr int64_t kBytes = int64_t{3} << 20;
          constexpr int kTimes = 20;
          const auto other = static_cast<size_t>(1 - ranks.rank());
          std::vector<std::unique_ptr<Communicator::Exchange>> under_way;
          std::vector<at::Tensor> received;
          if (ranks.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(500));
          for (int i = 0; i < kTimes; ++i) {
            device::TensorLists to(2), from(2);
            if (ranks.rank() == 0) to[other] = {at::full({kBytes}, i, at::kByte), at::full({1}, i, at::kByte)};
            if (ranks.rank() == 1) from[other] = {at::empty({kBytes}, at::kByte), at::empty({1}, at::kByte)};
            for (const at::Tensor& tensor : from[other]) received.push_back(tensor);
            under_way.push_back(ranks.start_exchange(std::move(to), std::move(from)));
          }
          for (const auto& exchange : under_way) exchange->wait();
          for (size_t i = 0; i < received.size(); ++i) {
            const auto wanted = static_cast<int>(i / 2);
            if (!received[i].eq(wanted).all().item<bool>()) throw std::runtime_error(fmt::format("piece {}", i));
          }
          exchange_a_byte(ranks);
        });
    for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
  }
}

// A byte that is changed on its way ends the run: no tensor has a byte that the other rank did not send.
TEST(SocketCommunicator, AByteThatWasChangedOnItsWayEndsTheRun) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const OwnedDescriptor network(pair[1]);
  auto [ours, theirs] = tls_ends(kSecret);
  std::vector<Connection> connections(2);
  connections[1] = {.socket = OwnedDescriptor(pair[0]), .tls = std::move(ours)};
  const auto ranks =
      make_socket_communicator({.name = "test", .rank = 0, .connections = std::move(connections), .wait_s = 10.0});
  theirs->write(std::as_bytes(std::span("some bytes of a message of rank 1")));
  std::string said = theirs->take_words();
  said[20] ^= 1;
  ASSERT_EQ(write(network.get(), said.data(), said.size()), std::ssize(said));
  EXPECT_THAT(outcome_of(exchange_a_byte, *ranks),
              HasSubstr("rank 1: what has come is not what the other end said next: somebody else is on the network"));
}

// Prints the time of an exchange.
TEST(SocketCommunicator, IsAsFastAsItIs) {
  for (const std::string& secret : {std::string(), kSecret}) {
    const std::vector<std::string> outcomes = run_sockets(2, {.secret = secret}, [&](Communicator& ranks) {
      for (const int64_t bytes : {int64_t{1} << 10, int64_t{64} << 20}) {
        const int64_t times = bytes > 4096 ? 10 : 1000;
        const at::Tensor mine = at::empty({bytes}, at::kByte), theirs = at::empty({bytes}, at::kByte);
        exchange_a_byte(ranks);
        const base::Clock::time_point start = base::Clock::now();
        for (int64_t i = 0; i < times; ++i) ranks.start_exchange({{mine}, {mine}}, {{theirs}, {theirs}})->wait();
        const double seconds = base::seconds_since(start) / static_cast<double>(times);
        if (ranks.rank() == 0) {
          fmt::print("2 ranks{}: {} KiB each way in {:.0f} us\n", secret.empty() ? "" : ", TLS", bytes >> 10,
                     seconds * 1e6);
        }
      }
    });
    for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, "");
  }
}

}  // namespace
}  // namespace tandem::mesh
