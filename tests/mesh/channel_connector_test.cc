// Tests that one who connects never waits: neither for a process that listens and is busy, nor for a machine that does
// not answer.
#include "mesh/channel_connector.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>

#include "mesh/channel_listener.h"

namespace tandem::mesh {
namespace {

constexpr double kMoment = 0.5;  // seconds; a call that does not wait takes less on a busy machine too

TEST(ChannelConnector, HasItsChannelOnceABusyListenerHasTime) {
  for (const std::string& secret : {std::string("thirty-two letters of one secret"), std::string()}) {
    ChannelListener listener("connector-test-" + std::to_string(getpid()),
                             {.address = "127.0.0.1", .port = 0, .secret = secret}, 5.0);
    const base::Clock::time_point begin = base::Clock::now();
    ChannelConnector connector("127.0.0.1", listener.port(), secret, 5.0);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(connector.advance(), nullptr) << "nobody has answered";
    EXPECT_LT(base::seconds_since(begin), kMoment);
    std::unique_ptr<Channel> here, there;
    while ((!here || !there) && base::seconds_since(begin) < 10.0) {
      if (!there) there = connector.advance();
      if (!here) here = listener.accept();
    }
    ASSERT_TRUE(here && there);
    here->send("hello");
    EXPECT_EQ(there->receive(5.0), "hello");
    there->send("welcome");
    EXPECT_EQ(here->receive(5.0), "welcome");
  }
}

TEST(ChannelConnector, SaysThatNobodyListens) {
  ChannelConnector connector("127.0.0.1", 1, "", 5.0);
  const auto end = [&] {
    for (int i = 0; i < 1000; ++i) {
      EXPECT_EQ(connector.advance(), nullptr);
      usleep(1'000);
    }
  };
  EXPECT_THROW(end(), NobodyListens);
}

// A listener whose queue is full does not answer, like a machine behind a firewall.
TEST(ChannelConnector, AMachineThatDoesNotAnswerIsNeitherWaitedForNorKept) {
  const OwnedDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in here = {};
  here.sin_family = AF_INET;
  inet_pton(AF_INET, "127.0.0.1", &here.sin_addr);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&here), sizeof here), 0);
  ASSERT_EQ(listen(listener.get(), 0), 0);
  std::deque<OwnedDescriptor> waiting;
  for (int i = 0; i < 4; ++i) waiting.push_back(begin_to_connect("127.0.0.1", port_of(listener)).value());
  usleep(50'000);
  ASSERT_FALSE(is_connected(waiting.back()).has_value()) << "the queue is not full";
  const base::Clock::time_point begin = base::Clock::now();
  ChannelConnector connector("127.0.0.1", port_of(listener), "", 5.0);
  EXPECT_EQ(connector.advance(), nullptr);
  EXPECT_LT(base::seconds_since(begin), kMoment);
  pollfd awaited = connector.awaited();
  EXPECT_EQ(poll(&awaited, 1, static_cast<int>(kConnectsWithin * 1000.0)), 0) << "it has nothing to do meanwhile";
  usleep(10'000);
  EXPECT_THROW(connector.advance(), NobodyListens);
}

}  // namespace
}  // namespace tandem::mesh
