#include "base/ready_set.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace tandem::base {

ReadySet::ReadySet() : descriptor_(epoll_create1(EPOLL_CLOEXEC)) {
  TANDEM_ENV_CHECK(descriptor_ >= 0, "no descriptor is left (ulimit -n)");
}

ReadySet::~ReadySet() { close(descriptor_); }

void ReadySet::add(int descriptor, int64_t name) {
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = static_cast<uint64_t>(name)}};
  TANDEM_ENV_CHECK(epoll_ctl(descriptor_, EPOLL_CTL_ADD, descriptor, &event) == 0,
                   fmt::format("a socket cannot be watched: {}", std::strerror(errno)));
}

void ReadySet::remove(int descriptor) { epoll_ctl(descriptor_, EPOLL_CTL_DEL, descriptor, nullptr); }

std::vector<int64_t> ReadySet::ready() const {
  std::array<epoll_event, 256> events;
  std::vector<int64_t> names;
  const int count = epoll_wait(descriptor_, events.data(), static_cast<int>(events.size()), /*timeout=*/0);
  for (int i = 0; i < count; ++i) names.push_back(static_cast<int64_t>(events[static_cast<size_t>(i)].data.u64));
  return names;
}

}  // namespace tandem::base
