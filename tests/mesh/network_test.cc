// Tests that the kernel is asked to look after connections to hosts that fall silent. tests/mesh/two_hosts.sh checks
// what it does then.
#include "mesh/network.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>

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

}  // namespace
}  // namespace tandem::mesh
