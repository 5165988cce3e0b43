#include "session/run_address.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/host_port.h"
#include "base/log.h"
#include "base/sha256.h"
#include "mesh/announcement.h"
#include "mesh/channel_connector.h"
#include "mesh/hosts.h"
#include "mesh/local_socket.h"
#include "mesh/network.h"

namespace tandem::session {

namespace {

using base::Clock;
using base::seconds_since;

constexpr const char* kAnnouncement = "rollout";  // "10.0.0.1:29600 MACHINE"

mesh::AnnouncementSettings announcement_settings(const config::TrainConfig& config, const mesh::Launch& launch) {
  return {.timeout_s = config.mesh.timeout_s(), .secret = launch.secret()};
}

void check_secret(const config::MeshOptions& mesh, const mesh::Launch& launch, const char* flag) {
  TANDEM_USER_CHECK(mesh.trust_network || !launch.secret().empty(),
                    fmt::format("{}: whoever reaches the port of the run would be believed; set TANDEM_SECRET_FILE for "
                                "it and for all that join it, or give --trust-network if nobody else is on the network",
                                flag));
}

// Tries until there is a run, which may still load.
using Look = std::function<std::unique_ptr<mesh::Channel>()>;
std::unique_ptr<mesh::Channel> look_until_found(const Look& look, double timeout_s, const std::string& none) {
  constexpr std::chrono::milliseconds kBetweenLooks{50};
  constexpr double kSayAfter = 5.0;  // seconds; a run that starts at the same time has come by then
  const Clock::time_point begin = Clock::now();
  bool is_said = false;
  while (true) {
    if (std::unique_ptr<mesh::Channel> run = look()) return run;
    if (!is_said && seconds_since(begin) > kSayAfter) {
      is_said = true;
      base::log_info("{}; waiting until there is one", none);
    }
    TANDEM_ENV_CHECK(seconds_since(begin) < timeout_s,
                     fmt::format("{} (waited for {:g} s, --distributed-timeout-minutes)", none, timeout_s));
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

std::unique_ptr<mesh::Channel> look_here(const config::TrainConfig& config) {
  std::optional<mesh::OwnedDescriptor> socket = mesh::connect_locally(workers_address(config.output.save));
  if (!socket) return nullptr;
  return std::make_unique<mesh::Channel>(std::move(*socket), config.mesh.timeout_s());
}

std::unique_ptr<mesh::Channel> look_there(const base::HostPort& there, const std::string& address,
                                          const config::TrainConfig& config, const mesh::Launch& launch) {
  try {
    return mesh::connect_channel(address, there.port, launch.secret(), config.mesh.timeout_s());
  } catch (const mesh::SecretDiffers& error) {
    throw UserError(fmt::format("{}:{}: {}", there.host, there.port, error.what()));
  } catch (const mesh::ChannelClosed& error) {
    throw EnvironmentError(fmt::format("{}:{}: {}", there.host, there.port, error.what()));
  }
}

std::unique_ptr<mesh::Channel> find_at(const std::string& place, const config::TrainConfig& config,
                                       const mesh::Launch& launch, const Look& first) {
  const std::optional<base::HostPort> there = base::host_port(place);
  TANDEM_ENV_CHECK(there, fmt::format("the run is said to be at '{}', which is no HOST:PORT", place));
  const std::string address = mesh::address_of_host(there->host, config.mesh.timeout_s(), "--rollout-join-address");
  return look_until_found(
      [&] {
        std::unique_ptr<mesh::Channel> run = first();
        return run ? std::move(run) : look_there(*there, address, config, launch);
      },
      config.mesh.timeout_s(), fmt::format("no run listens at {}, or this machine does not reach it", place));
}

}  // namespace

std::string workers_address(const std::string& save) {
  constexpr size_t kDigits = 32;
  return "run-" +
         base::sha256(std::filesystem::weakly_canonical(std::filesystem::absolute(save)).string()).substr(0, kDigits);
}

mesh::NetworkDoor network_door(const config::MeshOptions& options, const mesh::Launch& launch) {
  const bool is_spread = launch.spreads_workers();
  if (!is_spread && !options.rollout_listen) return {};
  if (!is_spread) check_secret(options, launch, "--rollout-listen");
  TANDEM_USER_CHECK(is_spread || !options.network_interface.empty(),
                    "--rollout-listen: give --network-interface too (eth0): that of the network on which other "
                    "machines reach this one");
  return {.address = is_spread ? mesh::own_address(launch.processes, options.network_interface, options.timeout_s())
                               : mesh::address_of_interface(options.network_interface),
          .port = static_cast<int>(options.rollout_listen.value_or(0)),
          .secret = launch.secret()};
}

mesh::NetworkDoor ranks_door(const config::TrainConfig& config, const mesh::Launch& launch) {
  if (launch.processes.is_one_host()) return {};
  return {.address = mesh::own_address(launch.processes, config.mesh.network_interface, config.mesh.timeout_s()),
          .port = 0,
          .secret = launch.secret()};
}

void say_where(const config::TrainConfig& config, const mesh::Launch& launch, const mesh::NetworkDoor& door, int port) {
  if (door.address.empty()) return;
  const std::string place = fmt::format("{}:{}", door.address, port);
  if (config.mesh.rollout_listen)
    base::log_info("others may sample for this run: its flags and --rollout-join-address {}", place);
  if (launch.spreads_workers())
    mesh::announce(launch.processes, announcement_settings(config, launch), kAnnouncement,
                   fmt::format("{} {}", place, mesh::machine_id()));
}

std::unique_ptr<mesh::Channel> find_run(const config::TrainConfig& config, const mesh::Launch& launch) {
  const auto nowhere_else = [] { return std::unique_ptr<mesh::Channel>(); };
  const auto here = [&] { return look_here(config); };
  if (const std::string& place = config.mesh.rollout_join_address; !place.empty()) {
    check_secret(config.mesh, launch, "--rollout-join-address");
    return find_at(place, config, launch, nowhere_else);
  }
  if (launch.spreads_workers()) {
    const std::string text =
        mesh::wait_for_announcement(launch.processes, announcement_settings(config, launch), kAnnouncement);
    const size_t space = text.find(' ');
    const bool is_here = space != std::string::npos && text.substr(space + 1) == mesh::machine_id();
    return find_at(text.substr(0, space), config, launch, is_here ? Look(here) : Look(nowhere_else));
  }
  return look_until_found(
      here, config.mesh.timeout_s(),
      fmt::format("no run with --save {} and --rollout-num-gpus runs on this machine", config.output.save));
}

}  // namespace tandem::session
