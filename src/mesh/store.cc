#include "mesh/store.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <chrono>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/check.h"
#include "mesh/network.h"

namespace tandem::mesh {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kBetweenAttempts{50};

// c10d tries again too, but warns of each attempt.
void wait_until_reachable(const LaunchVariables& launch, const std::string& address, milliseconds patience) {
  const auto give_up = Clock::now() + patience;
  while (!can_connect(address, launch.master_port)) {
    TANDEM_ENV_CHECK(
        Clock::now() < give_up,
        fmt::format(
            "{}: rank 0 does not answer at {}:{} within {:g} s (--distributed-timeout-minutes); look whether it "
            "runs, and whether this host reaches it",
            launch.name(), launch.master_address, launch.master_port, static_cast<double>(patience.count()) / 1000.0));
    std::this_thread::sleep_for(kBetweenAttempts);
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(const LaunchVariables& launch, double timeout_s) {
  const milliseconds patience(static_cast<int64_t>(timeout_s * 1000.0));
  const std::string address = address_of_host(launch.master_address);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launch.master_port);
  options.waitWorkers = false;
  options.timeout = patience;
  options.isServer = launch.rank == 0 && !launch.store_is_anothers;
  OwnedDescriptor listener;  // the store's from the moment in which it is made
  if (options.isServer) {
    if (launch.store_descriptor) listener = OwnedDescriptor(*launch.store_descriptor);
    TANDEM_ENV_CHECK(!launch.store_descriptor || listens(listener.get()),
                     fmt::format("TANDEM_STORE_FD={}: is no socket that listens; unset it", listener.get()));
    if (launch.store_descriptor) fcntl(listener.get(), F_SETFD, FD_CLOEXEC);
    if (!launch.store_descriptor) listener = listen_at(address, launch.master_port);
    options.masterListenFd = listener.get();
  } else {
    wait_until_reachable(launch, address, patience);
  }
  auto store = c10::make_intrusive<c10d::TCPStore>(address, options);
  listener.release();
  return store;
}

}  // namespace tandem::mesh
