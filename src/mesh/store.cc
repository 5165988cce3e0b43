#include "mesh/store.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "base/check.h"
#include "base/sha256.h"
#include "mesh/local_socket.h"
#include "mesh/network.h"

namespace tandem::mesh {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kBetweenConnects{50};

// c10d retries too, but warns of each attempt.
void wait_until_reachable(const LaunchVariables& launch, const std::string& address, milliseconds patience) {
  const auto give_up = Clock::now() + patience;
  while (!can_connect(address, launch.master_port)) {
    TANDEM_ENV_CHECK(
        Clock::now() < give_up,
        fmt::format(
            "{}: rank 0 does not answer at {}:{} within {:g} s (--distributed-timeout-minutes); look whether it "
            "runs, and whether this host reaches it",
            launch.name(), launch.master_address, launch.master_port, static_cast<double>(patience.count()) / 1000.0));
    std::this_thread::sleep_for(kBetweenConnects);
  }
}

// Returns a name that all ranks of a launch on this machine know, and no other launch there.
std::string local_name(const LaunchVariables& launch) {
  const std::string launch_id = launch.id.empty()
                                    ? fmt::format("{}:{} {}", launch.master_address, launch.master_port, launch.attempt)
                                    : launch.id;
  constexpr size_t kDigits = 32;
  return "ranks-" + base::sha256(launch_id + "\n" + launch.party).substr(0, kDigits);
}

OwnedDescriptor connect_to_rank_0(const LaunchVariables& launch, milliseconds patience) {
  const auto give_up = Clock::now() + patience;
  while (true) {
    if (std::optional<OwnedDescriptor> socket = connect_locally(local_name(launch))) return std::move(*socket);
    TANDEM_ENV_CHECK(
        Clock::now() < give_up,
        fmt::format("{}: rank 0 does not answer on this machine within {:g} s (--distributed-timeout-minutes); look "
                    "whether it runs; in containers, let all ranks share /tmp",
                    launch.name(), static_cast<double>(patience.count()) / 1000.0));
    std::this_thread::sleep_for(kBetweenConnects);
  }
}

}  // namespace

c10::intrusive_ptr<LocalStore> open_local_store(const LaunchVariables& launch, double timeout_s) {
  const milliseconds patience(static_cast<int64_t>(timeout_s * 1000.0));
  std::unique_ptr<LocalStoreServer> server;
  if (launch.rank == 0) {
    const std::string remedy = "wait until that launch has ended, or give this one another MASTER_PORT";
    server = std::make_unique<LocalStoreServer>(local_name(launch), remedy);
  }
  OwnedDescriptor socket = connect_to_rank_0(launch, patience);
  return c10::make_intrusive<LocalStore>(std::move(socket), launch.name(), patience, std::move(server));
}

c10::intrusive_ptr<c10d::Store> open_store(const LaunchVariables& launch, double timeout_s) {
  const milliseconds patience(static_cast<int64_t>(timeout_s * 1000.0));
  const std::string address = address_of_host(launch.master_address, timeout_s);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launch.master_port);
  options.waitWorkers = false;
  options.timeout = patience;
  options.isServer = launch.rank == 0 && !launch.store_is_anothers;
  OwnedDescriptor listener;  // belongs to the store once that is made
  if (options.isServer) {
    if (launch.store_descriptor) listener = OwnedDescriptor(*launch.store_descriptor);
    TANDEM_ENV_CHECK(!launch.store_descriptor || listens(listener.get()),
                     fmt::format("TANDEM_STORE_FD={}: is no socket that listens; unset it", listener.get()));
    if (launch.store_descriptor) fcntl(listener.get(), F_SETFD, FD_CLOEXEC);
    if (!launch.store_descriptor) listener = listen_for_ranks(launch.master_address, launch.master_port, timeout_s);
    options.masterListenFd = listener.get();
  } else {
    wait_until_reachable(launch, address, patience);
  }
  auto store = c10::make_intrusive<c10d::TCPStore>(address, options);
  listener.release();
  return store;
}

}  // namespace tandem::mesh
