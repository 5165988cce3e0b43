#include "mesh/network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

namespace tandem::mesh {

namespace {

// Ranks that connect before rank 0 has taken the socket over wait in the kernel.
constexpr int kWaiting = 4096;
constexpr double kBetweenLookUps = 1.0;  // seconds between two questions for the address of a host

std::string digits(const sockaddr_in& address) {
  std::array<char, INET_ADDRSTRLEN> text = {};
  inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
  return text.data();
}

sockaddr_in socket_address(const std::string& address, int port) {
  sockaddr_in result = {};
  result.sin_family = AF_INET;
  result.sin_port = htons(static_cast<uint16_t>(port));
  TANDEM_CHECK_EQ(inet_pton(AF_INET, address.c_str(), &result.sin_addr), 1, address);
  return result;
}

// Holds what this machine says about the name of a host.
struct LookUp {
  std::string address = "";  // "": none
  std::string error = "";
  bool is_unknown = false;  // true if nobody knows the name now, which a moment later somebody may
};

LookUp look_up(const std::string& host) {
  addrinfo wanted = {};
  wanted.ai_family = AF_INET;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &wanted, &found);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, [](addrinfo* list) {
    if (list != nullptr) freeaddrinfo(list);
  });
  if (error != 0 || found == nullptr)
    return {.error = gai_strerror(error), .is_unknown = error == EAI_NONAME || error == EAI_AGAIN};
  sockaddr_in address = {};
  std::memcpy(&address, found->ai_addr, sizeof address);
  return {.address = digits(address)};
}

}  // namespace

OwnedDescriptor& OwnedDescriptor::operator=(OwnedDescriptor&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = other.release();
  }
  return *this;
}

int OwnedDescriptor::release() { return std::exchange(descriptor_, -1); }

void OwnedDescriptor::close() {
  if (descriptor_ >= 0) ::close(release());
}

std::string address_of_host(const std::string& host, double wait_s, const std::string& flag) {
  const base::Clock::time_point begin = base::Clock::now();
  LookUp found = look_up(host);
  for (bool is_said = false; found.is_unknown && base::seconds_since(begin) < wait_s; found = look_up(host)) {
    if (!std::exchange(is_said, true)) {
      base::log_warning(
          "host {}: this machine does not know the name yet ({}); waiting for up to {:g} s; if it is "
          "mistyped, give another {}",
          host, found.error, wait_s, flag);
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(kBetweenLookUps, wait_s)));
  }
  TANDEM_ENV_CHECK(
      !found.is_unknown,
      fmt::format("host {}: this machine does not know the name ({}; waited for {:g} s); look whether that "
                  "machine runs, or give another {}",
                  host, found.error, wait_s, flag));
  TANDEM_USER_CHECK(!found.address.empty(),
                    fmt::format("host {}: has no IPv4 address that this machine knows ({}); give another {}", host,
                                found.error, flag));
  return found.address;
}

std::string address_of_interface(const std::string& name) {
  ifaddrs* all = nullptr;
  TANDEM_ENV_CHECK(getifaddrs(&all) == 0, "the network interfaces of this machine cannot be listed");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, freeifaddrs);
  std::string known;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    sockaddr_in address = {};
    std::memcpy(&address, one->ifa_addr, sizeof address);
    if (name == one->ifa_name || name == digits(address)) return digits(address);
    known += (known.empty() ? "" : ", ") + std::string(one->ifa_name);
  }
  throw UserError(fmt::format(
      "--network-interface {}: this machine has no such interface with an IPv4 address, nor such an address; it has {}",
      name, known.empty() ? "none" : known));
}

// Connecting a UDP socket sends nothing: it asks the kernel for the route.
std::string address_that_reaches(const std::string& host, double wait_s) {
  constexpr int kAnyPort = 9;
  const sockaddr_in there = socket_address(address_of_host(host, wait_s), kAnyPort);
  const OwnedDescriptor probe(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in here = {};
  socklen_t size = sizeof here;
  TANDEM_USER_CHECK(connect(probe.get(), reinterpret_cast<const sockaddr*>(&there), sizeof there) == 0 &&
                        getsockname(probe.get(), reinterpret_cast<sockaddr*>(&here), &size) == 0,
                    fmt::format("{}: no interface of this machine reaches it; give --network-interface", host));
  return digits(here);
}

std::string network_address_of(int descriptor) {
  sockaddr_in here = {};
  socklen_t size = sizeof here;
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&here), &size) != 0 || here.sin_family != AF_INET) return "";
  return digits(here);
}

bool is_loopback(const std::string& address) { return address.starts_with("127."); }

std::string host_name() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? name.data() : "localhost";
}

OwnedDescriptor listen_at(const std::string& address, int port, const ListenFlags& flags) {
  const sockaddr_in where = socket_address(address, port);
  OwnedDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Connections of a run that has just ended, which the kernel still remembers, do not keep the port.
  const int yes = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const bool bound = bind(listener.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0 &&
                     listen(listener.get(), kWaiting) == 0;
  const int error = bound ? 0 : errno;
  TANDEM_ENV_CHECK(error != EADDRINUSE,
                   fmt::format("port {} of {} is in use: give another one ({})", port, address, flags.port));
  TANDEM_USER_CHECK(error != EACCES,
                    fmt::format("port {} of {}: this user may not listen there; give one above 1023 ({})", port,
                                address, flags.port));
  if (error == EADDRNOTAVAIL) {
    const std::string line =
        fmt::format("cannot listen at {}:{}{}: no interface of this machine has that address; give one of its own ({})",
                    address, port, flags.host.empty() ? "" : ", the address of host " + flags.host, flags.address);
    TANDEM_USER_CHECK(!flags.host.empty(), line);
    throw EnvironmentError(line);
  }
  TANDEM_ENV_CHECK(bound, fmt::format("cannot listen at {}:{}: {}", address, port, std::strerror(error)));
  return listener;
}

OwnedDescriptor listen_for_ranks(const std::string& host, int port, double wait_s) {
  const std::string address = address_of_host(host, wait_s);
  ListenFlags flags;
  if (host != address) flags.host = host;
  return listen_at(address, port, flags);
}

int port_of(const OwnedDescriptor& listener) {
  sockaddr_in where = {};
  socklen_t size = sizeof where;
  TANDEM_CHECK_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&where), &size), 0);
  return ntohs(where.sin_port);
}

std::optional<OwnedDescriptor> begin_to_connect(const std::string& address, int port) {
  const sockaddr_in where = socket_address(address, port);
  OwnedDescriptor connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int result = connect(connection.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where);
  if (result != 0 && errno != EINPROGRESS) return std::nullopt;
  return connection;
}

std::optional<bool> is_connected(const OwnedDescriptor& connection) {
  pollfd polled = {connection.get(), POLLOUT, 0};
  if (poll(&polled, 1, 0) <= 0) return std::nullopt;
  int error = 0;
  socklen_t size = sizeof error;
  return getsockopt(connection.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

std::optional<OwnedDescriptor> connect_to(const std::string& address, int port) {
  std::optional<OwnedDescriptor> connection = begin_to_connect(address, port);
  if (!connection) return std::nullopt;
  pollfd polled = {connection->get(), POLLOUT, 0};
  poll(&polled, 1, static_cast<int>(kConnectsWithin * 1000.0));
  if (!is_connected(*connection).value_or(false)) return std::nullopt;
  fcntl(connection->get(), F_SETFL, fcntl(connection->get(), F_GETFL) & ~O_NONBLOCK);
  return connection;
}

bool can_connect(const std::string& address, int port) { return connect_to(address, port).has_value(); }

std::optional<OwnedDescriptor> accept_from(const OwnedDescriptor& listener, std::string* address) {
  sockaddr_in from = {};
  socklen_t size = sizeof from;
  OwnedDescriptor connection(accept4(listener.get(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC));
  if (connection.get() < 0) return std::nullopt;
  *address = digits(from);
  return connection;
}

bool listens(int descriptor) {
  int answer = 0;
  socklen_t size = sizeof answer;
  return getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &answer, &size) == 0 && answer == 1;
}

namespace {

void set(int descriptor, int level, int option, int value) {
  setsockopt(descriptor, level, option, &value, sizeof value);
}

void end_when_silent(int descriptor, double seconds) {
  // The kernel asks a host that has been silent for half of the time, and then again and again.
  constexpr int kProbes = 5;
  const int idle = std::max(static_cast<int>(seconds / 2), 1);
  const int interval = std::max(static_cast<int>(seconds / 2 / kProbes), 1);
  const int patience_ms = static_cast<int>(std::min(seconds * 1000.0, 2e9));
  set(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, idle);
  set(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set(descriptor, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, patience_ms);
}

}  // namespace

void watch_connection(const OwnedDescriptor& connection, double seconds) {
  set(connection.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  end_when_silent(connection.get(), seconds);
}

void end_connections_to_silent_hosts(double seconds) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    sockaddr_storage there = {};
    socklen_t size = sizeof there;
    if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&there), &size) != 0) continue;
    // The store's connections are IPv6, with an address of IPv4 in it.
    if (there.ss_family != AF_INET && there.ss_family != AF_INET6) continue;
    end_when_silent(descriptor, seconds);
  }
}

}  // namespace tandem::mesh
