// Tests of frames between processes: what is sent arrives, and no received byte can do more than end the channel.
#include "mesh/channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <random>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace tandem::mesh {
namespace {

struct Pair {
  explicit Pair(size_t max_bytes = kMaxFrameBytes) {
    std::array<int, 2> ends = {};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    a = std::make_unique<Channel>(OwnedDescriptor(ends[0]), 0.5);
    b = std::make_unique<Channel>(OwnedDescriptor(ends[1]), 0.5, max_bytes);
  }
  std::unique_ptr<Channel> a, b;
};

TEST(Channel, WhatIsSentArrivesInOrder) {
  const Pair pair;
  const std::string large(3'000'000, 'x');  // more than the kernel keeps
  std::jthread sender([&] {
    for (const std::string& text : {std::string("one"), std::string(), large}) pair.a->send(text);
  });
  EXPECT_EQ(pair.b->receive(10.0), "one");
  EXPECT_EQ(pair.b->receive(10.0), "");
  EXPECT_EQ(pair.b->receive(10.0), large);
  EXPECT_EQ(pair.b->receive(0.01), std::nullopt);
}

TEST(Channel, SendsWithoutWaitingForTheOtherEnd) {
  const Pair pair;
  const std::string large(3'000'000, 'x');  // more than the kernel keeps
  pair.a->send_without_waiting("one");
  EXPECT_FALSE(pair.a->has_rest());
  pair.a->send_without_waiting(large);
  EXPECT_TRUE(pair.a->has_rest());
  EXPECT_FALSE(pair.a->send_rest()) << "the other end has read nothing";
  pair.a->send_without_waiting("two");
  EXPECT_EQ(pair.b->receive(0.0), "one");
  std::optional<std::string> got;
  while (!got) {
    const bool is_sent = pair.a->send_rest();
    EXPECT_EQ(is_sent, !pair.a->has_rest());
    got = pair.b->receive(0.0);
  }
  EXPECT_EQ(got, large);
  pair.a->send("three");
  EXPECT_EQ(pair.b->receive(10.0), "two");
  EXPECT_EQ(pair.b->receive(10.0), "three");
}

// What is sent with a wait comes after what was sent without one.
TEST(Channel, SendsTheRestBeforeWhatFollows) {
  const Pair pair;
  const std::string large(3'000'000, 'x');
  pair.a->send_without_waiting(large);
  std::jthread sender([&] { pair.a->send("last"); });
  EXPECT_EQ(pair.b->receive(10.0), large);
  EXPECT_EQ(pair.b->receive(10.0), "last");
}

TEST(Channel, KnowsWhetherSomethingMayHaveComeThatTheSocketDoesNotShow) {
  const Pair pair;
  EXPECT_TRUE(pair.b->may_have_more()) << "nobody has looked yet";
  EXPECT_EQ(pair.b->receive(0.0), std::nullopt);
  EXPECT_FALSE(pair.b->may_have_more());
  for (const char* text : {"one", "two"}) pair.a->send(text);
  EXPECT_EQ(pair.b->receive(10.0), "one");
  EXPECT_TRUE(pair.b->may_have_more());
  EXPECT_EQ(pair.b->receive(0.0), "two");
  EXPECT_EQ(pair.b->receive(0.0), std::nullopt);
  EXPECT_FALSE(pair.b->may_have_more());
}

TEST(Channel, BytesBehindAFrameGoStraightToTheirPlace) {
  const Pair pair;
  std::vector<std::byte> sent(1'000'000), got(sent.size());
  std::mt19937 random(3);
  for (std::byte& value : sent) value = static_cast<std::byte>(random());
  std::jthread sender([&] {
    pair.a->send("a million");
    pair.a->send_bytes(sent);
    pair.a->send("behind");
  });
  EXPECT_EQ(pair.b->receive(10.0), "a million");
  pair.b->receive_bytes(got);
  EXPECT_TRUE(got == sent);
  EXPECT_EQ(pair.b->receive(10.0), "behind");
}

TEST(Channel, BothEndsMaySendMuchAtOneTime) {
  const Pair pair;
  const std::string large(3'000'000, 'x');
  std::jthread other([&] {
    pair.a->send(large);
    EXPECT_EQ(pair.a->receive(10.0), large);
  });
  pair.b->send(large);
  EXPECT_EQ(pair.b->receive(10.0), large);
}

TEST(Channel, AnEndThatIsGoneOrStuckEndsTheWait) {
  Pair pair;
  const base::Clock::time_point begin = base::Clock::now();
  EXPECT_THROW(pair.a->send(std::string(3'000'000, 'x')), ChannelClosed) << "nobody reads";
  EXPECT_GE(base::seconds_since(begin), 0.4);
  pair.a.reset();
  EXPECT_THROW(
      {
        while (true) pair.b->receive(5.0);
      },
      ChannelClosed);
  EXPECT_THROW(pair.b->send(std::string(3'000'000, 'x')), ChannelClosed);
}

// Much that nobody reads any more is on its way to the end that sends the last frame.
TEST(Channel, TheLastWordArrives) {
  Pair pair;
  std::jthread leaving([&] {
    pair.a->send("leaving");
    pair.a->wait_until_closed(60.0);
    pair.a.reset();
  });
  pair.b->send(std::string(3'000'000, 'x'));
  EXPECT_EQ(pair.b->receive(5.0), "leaving");
  const base::Clock::time_point begin = base::Clock::now();
  pair.b.reset();
  leaving.join();
  EXPECT_LT(base::seconds_since(begin), 30.0) << "the other end has closed";
}

TEST(Channel, AFrameThatIsTooLongIsRefusedBeforeItIsThere) {
  const Pair pair(1000);
  pair.a->send(std::string(1001, 'x'));
  EXPECT_THROW(pair.b->receive(5.0), ChannelClosed);
}

// Whatever byte of a frame is changed, its payload does not come out as another one.
TEST(Channel, AChangedByteIsFound) {
  const std::string frame = frame_of("groups");
  for (size_t at = 0; at < frame.size(); ++at) {
    for (const int bit : {0, 7}) {
      std::string changed = frame;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      FrameReader reader;
      reader.add(changed);
      try {
        EXPECT_EQ(reader.next(), std::nullopt) << "byte " << at;  // a longer length waits for more
      } catch (const ChannelClosed&) {
      }
    }
  }
}

}  // namespace
}  // namespace tandem::mesh
