// Tests of the store of ranks on one machine: another rank reads what one sets, counters add up, and two that ask are
// connected.
#include "mesh/local_store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "base/clock.h"
#include "mesh/local_socket.h"
#include "tandem/error.h"
#include "tests/base/thrown.h"

namespace tandem::mesh {
namespace {

using std::chrono::milliseconds;

std::string own_name() { return fmt::format("store-{}", getpid()); }

LocalStore open(milliseconds timeout = milliseconds(20'000)) {
  return {std::move(*connect_locally(own_name())), "rank 1 of 2", timeout};
}

TEST(LocalStore, IsOneForAllThatOpenIt) {
  const LocalStoreServer server(own_name(), "wait");
  LocalStore a = open(), b = open();
  EXPECT_FALSE(b.check({"word"}));
  const std::string word = std::string(300'000, 'x') + '\0' + "end";
  a.set("word", word);
  EXPECT_TRUE(b.check({"word"}));
  EXPECT_FALSE(b.check({"word", "another"}));
  EXPECT_EQ(b.get_to_str("word"), word);
  a.set("empty", "");
  EXPECT_EQ(b.get_to_str("empty"), "");
  EXPECT_EQ(a.getNumKeys(), 2);
  EXPECT_TRUE(b.deleteKey("empty"));
  EXPECT_FALSE(b.deleteKey("empty"));
  EXPECT_EQ(a.getNumKeys(), 1);
}

TEST(LocalStore, GetWaitsForTheKey) {
  const LocalStoreServer server(own_name(), "wait");
  LocalStore a = open(), b = open(milliseconds(300));
  std::jthread late([&] {
    std::this_thread::sleep_for(milliseconds(100));
    a.set("late", "here");
  });
  EXPECT_EQ(b.get_to_str("late"), "here");
  try {
    b.get("never");
    ADD_FAILURE();
  } catch (const EnvironmentError& error) {
    EXPECT_STREQ(error.what(), "rank 1 of 2: rank 0 did not answer within 0.3 s (--distributed-timeout-minutes)");
  }
}

TEST(LocalStore, ConnectsTwoThatAsk) {
  const LocalStoreServer server(own_name(), "wait");
  LocalStore a = open(), b = open();
  for (const char* key : {"host 0 1", "savers 0 1", "host 0 1"}) {
    const OwnedDescriptor one = a.connect(key), other = b.connect(key);
    const std::string word = fmt::format("over {}", key);
    ASSERT_EQ(write(one.get(), word.data(), word.size()), std::ssize(word));
    std::string read_word(word.size(), '\0');
    ASSERT_EQ(read(other.get(), read_word.data(), read_word.size()), std::ssize(word));
    EXPECT_EQ(read_word, word);
  }
}

TEST(LocalStore, AServerThatIsGoneOrFrozenIsNotWaitedFor) {
  const std::string name = own_name() + "-child";
  const pid_t child = fork();
  if (child == 0) {
    const LocalStoreServer server(name, "wait");
    pause();
    _exit(0);
  }
  std::optional<OwnedDescriptor> socket;
  while (!(socket = connect_locally(name))) usleep(1000);
  LocalStore store(std::move(*socket), "rank 1 of 2", milliseconds(500));
  EXPECT_FALSE(store.check({"word"}));
  const auto why = [&] { return base::thrown_by<EnvironmentError>([&] { store.check({"word"}); }, "answered"); };
  kill(child, SIGSTOP);
  waitpid(child, nullptr, WUNTRACED);
  EXPECT_EQ(why(), "rank 1 of 2: rank 0 did not answer within 0.5 s (--distributed-timeout-minutes)");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(why(), "rank 1 of 2: rank 0 is gone; look at what it said");
}

}  // namespace
}  // namespace tandem::mesh
