// Tests of what one process passes on to the next: all of it in order, or nothing more once the next one is gone.
#include "mesh/relay.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstring>
#include <random>

#include "base/clock.h"

namespace tandem::mesh {
namespace {

using Bytes = std::shared_ptr<const std::vector<std::byte>>;

struct Pair {
  explicit Pair(double patience_s = 10.0) {
    std::array<int, 2> ends = {};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    ours = std::make_unique<Channel>(OwnedDescriptor(ends[0]), patience_s);
    theirs = std::make_unique<Channel>(OwnedDescriptor(ends[1]), patience_s);
  }
  std::unique_ptr<Channel> ours, theirs;
};

Bytes bytes_of(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  auto bytes = std::make_shared<std::vector<std::byte>>(size);
  for (std::byte& byte : *bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Relay, PassesPiecesOnInOrder) {
  Pair pair;
  Relay relay(std::move(pair.ours), /*most_bytes=*/100'000);
  std::jthread passes([&] {
    for (unsigned i = 0; i < 200; ++i) relay.pass(std::to_string(i), bytes_of(1 + i * 977, i));
  });
  for (unsigned i = 0; i < 200; ++i) {
    ASSERT_EQ(pair.theirs->receive(10.0), std::to_string(i));
    std::vector<std::byte> into(1 + i * 977);
    pair.theirs->receive_bytes(into);
    ASSERT_EQ(into, *bytes_of(into.size(), i)) << i;
  }
}

TEST(Relay, WaitsWhileTooMuchWaits) {
  Pair pair;
  Relay relay(std::move(pair.ours), /*most_bytes=*/1'000'000);
  std::atomic<int> num_passed = 0;
  std::jthread passes([&] {
    for (int i = 0; i < 40; ++i) {
      relay.pass("piece", bytes_of(1'000'000, 1));
      ++num_passed;
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // a socket holds less than a piece
  EXPECT_LE(num_passed, 4);
  std::vector<std::byte> into(1'000'000);
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(pair.theirs->receive(10.0), "piece");
    pair.theirs->receive_bytes(into);
  }
  passes.join();
  EXPECT_EQ(num_passed, 40);
}

TEST(Relay, DoesNothingMoreOnceTheNextProcessIsGone) {
  Pair pair(/*patience_s=*/60.0);
  Relay relay(std::move(pair.ours), /*most_bytes=*/1'000'000);
  const Bytes early = bytes_of(1'000'000, 1), late = bytes_of(1'000'000, 2);
  relay.pass("piece", early);
  pair.theirs = nullptr;
  const base::Clock::time_point begin = base::Clock::now();
  // A socket holds less than a piece, so the second of these waits until the relay knows that nobody takes the first.
  for (int i = 0; i < 3; ++i) relay.pass("piece", early);
  EXPECT_LT(base::seconds_since(begin), 20.0) << "the patience is for a process that is there";
  for (int i = 0; i < 100; ++i) {
    relay.pass("piece", late);
    ASSERT_EQ(late.use_count(), 1) << "a piece that nobody takes is kept";
  }
}

TEST(Relay, GivesUpAProcessThatDoesNotMove) {
  Pair pair(/*patience_s=*/0.3);
  Relay relay(std::move(pair.ours), /*most_bytes=*/1'000'000);
  const base::Clock::time_point begin = base::Clock::now();
  for (int i = 0; i < 100; ++i) relay.pass("piece", bytes_of(1'000'000, 1));
  EXPECT_GE(base::seconds_since(begin), 0.3);
}

TEST(Relay, EndsAtOnceWithPiecesThatNobodyTakes) {
  Pair pair(/*patience_s=*/60.0);
  const base::Clock::time_point begin = base::Clock::now();
  {
    Relay relay(std::move(pair.ours), /*most_bytes=*/10'000'000);
    for (int i = 0; i < 5; ++i) relay.pass("piece", bytes_of(1'000'000, 1));
  }
  EXPECT_LT(base::seconds_since(begin), 20.0);
}

}  // namespace
}  // namespace tandem::mesh
