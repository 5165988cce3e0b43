// Tests that a stranger who reaches the port of a run can neither talk to it, block it nor fill it, while processes of
// the run get in.
#include "mesh/channel_listener.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <future>

#include "mesh/channel_connector.h"

namespace tandem::mesh {
namespace {

const std::string kSecret = "thirty-two letters of one secret";

std::string local_name() { return "listener-test-" + std::to_string(getpid()); }

ChannelListener listening(const std::string& secret = kSecret, double stranger_patience_s = 2.0) {
  return {local_name(),
          {.address = "127.0.0.1", .port = 0, .secret = secret, .stranger_patience_s = stranger_patience_s},
          5.0};
}

std::unique_ptr<Channel> accepted(ChannelListener& listener, double patience_s = 10.0) {
  const base::Clock::time_point begin = base::Clock::now();
  while (base::seconds_since(begin) < patience_s) {
    if (std::unique_ptr<Channel> channel = listener.accept()) return channel;
    std::vector<pollfd> polled;
    for (const int descriptor : listener.descriptors()) polled.push_back({descriptor, POLLIN, 0});
    poll(polled.data(), polled.size(), 10);
  }
  return nullptr;
}

auto connecting(const ChannelListener& listener, const std::string& secret = kSecret) {
  return std::async(std::launch::async,
                    [port = listener.port(), secret] { return connect_channel("127.0.0.1", port, secret, 5.0); });
}

// Expects that both ends receive what the other one sends.
void expect_talk(Channel& a, Channel& b) {
  a.send("hello");
  EXPECT_EQ(b.receive(5.0), "hello");
  b.send("welcome");
  EXPECT_EQ(a.receive(5.0), "welcome");
}

size_t num_open() {
  size_t count = 0;
  for (int descriptor = 0; descriptor < 1024; ++descriptor) count += fcntl(descriptor, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

TEST(ChannelListener, TalksToThisMachineAndToOthers) {
  for (const std::string& secret : {kSecret, std::string()}) {
    ChannelListener listener = listening(secret);
    EXPECT_EQ(listener.accept(), nullptr);
    auto other = connecting(listener, secret);
    const std::unique_ptr<Channel> here = accepted(listener);
    ASSERT_TRUE(here);
    expect_talk(*here, *other.get());
    Channel local(std::move(*connect_locally(local_name())), 5.0);
    const std::unique_ptr<Channel> there = accepted(listener);
    ASSERT_TRUE(there);
    expect_talk(*there, local);
  }
  EXPECT_EQ(connect_channel("127.0.0.1", 1, kSecret, 5.0), nullptr) << "nobody listens there";
}

TEST(ChannelListener, AnotherSecretIsSaidToBoth) {
  ChannelListener listener = listening();
  auto other = connecting(listener, "thirty-two letters of another one");
  testing::internal::CaptureStderr();
  EXPECT_EQ(accepted(listener, 0.2), nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("127.0.0.1 has connected to 127.0.0.1:"), std::string::npos) << said;
  EXPECT_NE(said.find("TANDEM_SECRET_FILE: the other end has another secret"), std::string::npos) << said;
  EXPECT_THROW(other.get(), SecretDiffers);
}

TEST(ChannelListener, OneEndWithoutASecretIsSaidToBoth) {
  for (const bool listens_with : {true, false}) {
    ChannelListener listener = listening(listens_with ? kSecret : "");
    auto other = connecting(listener, listens_with ? "" : kSecret);
    testing::internal::CaptureStderr();
    EXPECT_EQ(accepted(listener, 0.3), nullptr);
    const std::string said = testing::internal::GetCapturedStderr();
    const std::string with = "was started with TANDEM_SECRET_FILE, this one without; set it for all";
    const std::string without = "was started without TANDEM_SECRET_FILE, this one with; set it for all";
    EXPECT_NE(said.find(listens_with ? without : with), std::string::npos) << said;
    try {
      other.get();
      ADD_FAILURE();
    } catch (const SecretDiffers& error) {
      EXPECT_EQ(std::string(error.what()), "the other end " + (listens_with ? with : without));
    }
  }
}

TEST(ChannelListener, StrangersAreNeitherWaitedForNorKept) {
  ChannelListener listener = listening(kSecret, /*stranger_patience_s=*/60.0);
  const size_t open_before = num_open();
  std::deque<OwnedDescriptor> silent;
  for (int i = 0; i < 200; ++i) {
    silent.push_back(*connect_to("127.0.0.1", listener.port()));
    EXPECT_EQ(listener.accept(), nullptr);
  }
  EXPECT_LT(num_open(), open_before + 300) << "of 200 silent strangers at most 64 are kept";
  // This stranger begins like the program, and sends megabytes more.
  const OwnedDescriptor loud = std::move(*connect_to("127.0.0.1", listener.port()));
  fcntl(loud.get(), F_SETFL, O_NONBLOCK);
  const std::string much = std::string("\x16\x03\x01\x20\x00\x01\x00\xea\x60", 9) + std::string(1 << 20, '0');
  for (int i = 0; i < 20; ++i) {
    send(loud.get(), much.data(), much.size(), MSG_NOSIGNAL);
    EXPECT_EQ(listener.accept(), nullptr);
  }
  char byte = 0;
  fcntl(loud.get(), F_SETFL, 0);
  while (recv(loud.get(), &byte, 1, 0) > 0) {
  }
  auto member = connecting(listener);
  const std::unique_ptr<Channel> here = accepted(listener);
  ASSERT_TRUE(here) << "it waits for a stranger";
  expect_talk(*here, *member.get());
}

TEST(ChannelListener, AStrangerWhoSaysNothingIsDropped) {
  ChannelListener listener = listening(kSecret, /*stranger_patience_s=*/0.2);
  const size_t before = listener.descriptors().size();
  const OwnedDescriptor silent = std::move(*connect_to("127.0.0.1", listener.port()));
  EXPECT_EQ(listener.accept(), nullptr);
  EXPECT_EQ(listener.descriptors().size(), before + 1);
  usleep(300'000);
  EXPECT_EQ(listener.accept(), nullptr);
  EXPECT_EQ(listener.descriptors().size(), before);
}

// A process that is frozen, or one that is no run: connecting succeeds, since the kernel answers.
TEST(ChannelListener, OneThatDoesNotAnswerIsGivenUp) {
  const OwnedDescriptor frozen = listen_at("127.0.0.1", 0);
  for (const std::string& secret : {kSecret, std::string()}) {
    const base::Clock::time_point begin = base::Clock::now();
    try {
      connect_channel("127.0.0.1", port_of(frozen), secret, 0.5);
      ADD_FAILURE() << "nobody is there";
    } catch (const ChannelClosed& error) {
      EXPECT_EQ(std::string(error.what()),
                "it has not answered within 0.5 s (--distributed-timeout-minutes): the process that listens there is "
                "stopped or frozen, or is no run; look whose port that is");
    }
    EXPECT_LT(base::seconds_since(begin), 5.0);
  }
}

TEST(ChannelListener, APortInUseIsOneLine) {
  const ChannelListener first = listening();
  try {
    const ChannelListener second("another name", {.address = "127.0.0.1", .port = first.port(), .secret = kSecret},
                                 5.0);
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(std::string(error.what()),
              "port " + std::to_string(first.port()) + " of 127.0.0.1 is in use: give another one (--rollout-listen)");
  }
}

}  // namespace
}  // namespace tandem::mesh
