#include "base/bell.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace tandem::base {

Bell::Bell() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TANDEM_ENV_CHECK(descriptor_ >= 0, "cannot make an event descriptor: no descriptor is left (ulimit -n)");
}

Bell::~Bell() { close(descriptor_); }

void Bell::ring() { eventfd_write(descriptor_, 1); }

void Bell::silence() {
  eventfd_t rung = 0;
  eventfd_read(descriptor_, &rung);
}

void wait_readable(std::span<const int> descriptors, double wait_s) {
  std::vector<pollfd> polled;
  for (const int descriptor : descriptors) polled.push_back({descriptor, POLLIN, 0});
  ::poll(polled.data(), polled.size(), static_cast<int>(std::ceil(wait_s * 1000.0)));
}

}  // namespace tandem::base
