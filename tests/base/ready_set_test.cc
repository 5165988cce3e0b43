// Tests of a set of sockets: it names those that can be read, and nobody else.
#include "base/ready_set.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "base/bell.h"

namespace tandem::base {
namespace {

struct Ends {
  Ends() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, both.data()), 0); }
  ~Ends() {
    for (const int end : both) close(end);
  }
  void write_byte() const { EXPECT_EQ(write(both[1], "x", 1), 1); }
  void read_byte() const {
    char byte = 0;
    EXPECT_EQ(read(both[0], &byte, 1), 1);
  }
  std::array<int, 2> both = {};
};

TEST(ReadySet, NamesThoseThatCanBeRead) {
  const std::array<Ends, 3> sockets;
  ReadySet set;
  for (int64_t i = 0; i < 3; ++i) set.add(sockets[static_cast<size_t>(i)].both[0], 10 + i);
  EXPECT_TRUE(set.ready().empty());
  sockets[2].write_byte();
  wait_readable(std::array{set.descriptor()}, 30.0);
  EXPECT_EQ(set.ready(), std::vector<int64_t>{12});
  EXPECT_EQ(set.ready(), std::vector<int64_t>{12}) << "nobody has read it";
  sockets[0].write_byte();
  EXPECT_EQ(set.ready().size(), 2U);
  sockets[2].read_byte();
  EXPECT_EQ(set.ready(), std::vector<int64_t>{10});
}

TEST(ReadySet, ForgetsThoseThatAreTakenOut) {
  const Ends socket;
  ReadySet set;
  set.add(socket.both[0], 7);
  socket.write_byte();
  EXPECT_EQ(set.ready().size(), 1U);
  set.remove(socket.both[0]);
  EXPECT_TRUE(set.ready().empty());
}

TEST(ReadySet, NamesThoseWhoseOtherEndHasClosedAndForgetsThoseThatAreClosed) {
  ReadySet set;
  std::array<int, 2> ends = {};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  set.add(ends[0], 7);
  close(ends[1]);
  EXPECT_EQ(set.ready(), std::vector<int64_t>{7});
  close(ends[0]);
  EXPECT_TRUE(set.ready().empty());
}

TEST(ReadySet, ComesToAllOfManySockets) {
  const std::vector<Ends> sockets(400);
  ReadySet set;
  for (size_t i = 0; i < sockets.size(); ++i) {
    set.add(sockets[i].both[0], static_cast<int64_t>(i));
    sockets[i].write_byte();
  }
  size_t num_read = 0;
  while (num_read < sockets.size()) {
    const std::vector<int64_t> ready = set.ready();
    ASSERT_FALSE(ready.empty());
    for (const int64_t i : ready) sockets[static_cast<size_t>(i)].read_byte();
    num_read += ready.size();
  }
  EXPECT_TRUE(set.ready().empty());
}

}  // namespace
}  // namespace tandem::base
