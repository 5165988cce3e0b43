// Tests that the kernel is asked to look after connections to hosts that fall silent. tests/mesh/two_hosts.sh checks
// what it does then.
#include "mesh/network.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "tandem/error.h"

namespace tandem::mesh {
namespace {

int option(const OwnedDescriptor& descriptor, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(getsockopt(descriptor.get(), level, name, &value, &size), 0);
  return value;
}

OwnedDescriptor connected(int port) {
  OwnedDescriptor end(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in there = {};
  there.sin_family = AF_INET;
  there.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &there.sin_addr);
  EXPECT_EQ(connect(end.get(), reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
  return end;
}

// Connects like the store: IPv6, with an address of IPv4 in it.
OwnedDescriptor connected_as_the_store(int port) {
  OwnedDescriptor end(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 there = {};
  there.sin6_family = AF_INET6;
  there.sin6_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET6, "::ffff:127.0.0.1", &there.sin6_addr);
  EXPECT_EQ(connect(end.get(), reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
  return end;
}

TEST(Network, ConnectionsToSilentHostsEnd) {
  const OwnedDescriptor listener = listen_at("127.0.0.1", 0);
  const OwnedDescriptor one = connected(port_of(listener)), two = connected_as_the_store(port_of(listener));
  EXPECT_EQ(option(one, SOL_SOCKET, SO_KEEPALIVE), 0);
  end_connections_to_silent_hosts(60.0);
  for (const OwnedDescriptor* end : {&one, &two}) {
    EXPECT_EQ(option(*end, SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(option(*end, IPPROTO_TCP, TCP_USER_TIMEOUT), 60'000);
    const int until_probes = option(*end, IPPROTO_TCP, TCP_KEEPIDLE);
    const int probes = option(*end, IPPROTO_TCP, TCP_KEEPINTVL) * option(*end, IPPROTO_TCP, TCP_KEEPCNT);
    EXPECT_EQ(until_probes + probes, 60);
  }
}

// Returns the first letter of the error's kind, "U" for the user's and "E" for the environment's, and its line.
template <typename Listen>
std::string why_it_does_not_listen(const Listen& listen) {
  try {
    listen();
    return "it listens";
  } catch (const UserError& error) {
    return std::string("U ") + error.what();
  } catch (const EnvironmentError& error) {
    return std::string("E ") + error.what();
  }
}

// The line once named MASTER_ADDR whoever had given the address, and its code asked a scheduler to try again.
TEST(Network, AnAddressOfAnotherMachineIsItsFlagsFault) {
  constexpr const char* kElsewhere = "203.0.113.9";  // a documentation address: nobody's
  EXPECT_EQ(why_it_does_not_listen([&] { listen_at(kElsewhere, 29799, {.port = "--listen", .address = "--listen"}); }),
            "U cannot listen at 203.0.113.9:29799: no interface of this machine has that address; give one of its own "
            "(--listen)");
  EXPECT_EQ(why_it_does_not_listen([&] { listen_for_ranks(kElsewhere, 29799, /*wait_s=*/0.0); }),
            "U cannot listen at 203.0.113.9:29799: no interface of this machine has that address; give one of its own "
            "(MASTER_ADDR, or --master-addr of tandem launch)");
  EXPECT_EQ(why_it_does_not_listen([&] { listen_at(kElsewhere, 29799, {.host = "moved"}); }),
            "E cannot listen at 203.0.113.9:29799, the address of host moved: no interface of this machine has that "
            "address; give one of its own (MASTER_ADDR, or --master-addr of tandem launch)");
  EXPECT_GT(port_of(listen_for_ranks("localhost", 0, /*wait_s=*/0.0)), 0);
}

// A container may start before its name, or that of the machine it looks for, is known.
TEST(Network, ANameThatNobodyKnowsYetIsAskedForAgain) {
  const base::Clock::time_point begin = base::Clock::now();
  const int64_t num_warnings = base::num_warnings();
  try {
    address_of_host("nobody.invalid", /*wait_s=*/1.5);
    FAIL() << "it has an address";
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(std::string(error.what()).find("host nobody.invalid: this machine does not know the name ("), 0U)
        << error.what();
  }
  EXPECT_GE(base::seconds_since(begin), 1.5);
  EXPECT_EQ(base::num_warnings(), num_warnings + 1) << "whoever has mistyped it reads so at once";
  EXPECT_EQ(address_of_host("127.0.0.1", /*wait_s=*/0.0), "127.0.0.1");
}

}  // namespace
}  // namespace tandem::mesh
