#include "session/ranks.h"

#include <fmt/format.h>

#include <optional>
#include <thread>

#include "base/env.h"
#include "base/log.h"
#include "device/backend.h"
#include "device/registry.h"
#include "mesh/hosts.h"
#include "mesh/launch_variables.h"
#include "mesh/network.h"
#include "mesh/placement.h"
#include "mesh/rendezvous.h"
#include "session/run_address.h"

namespace tandem::session {

namespace {

mesh::Placement placement_of(const config::TrainConfig& config) {
  return {.num_trainers = config.mesh.joins() ? 0 : static_cast<int>(config.mesh.num_ranks()),
          .per_engine = static_cast<int>(config.mesh.tensor_model_parallel_size)};
}

// Returns the network of devices that have one of their own.
mesh::DeviceNetwork network_of(const config::TrainConfig& config) {
  const device::DeviceSpec device = device::parse_device(config.model.device);
  if (device::footprint_of(device).shares_host_memory) return {};
  // A device that cannot be used is found before anybody waits for this rank.
  device::make_ops(device, {.num_threads = static_cast<int>(config.model.num_threads)});
  return [device, mesh = config.mesh](device::Communicator& hosts, bool is_one_host) {
    return device::make_communicator(device, {.hosts = hosts,
                                              .shares_memory = is_one_host && mesh.backend.empty(),
                                              .timeout_s = mesh.timeout_s(),
                                              .interface = mesh.network_interface});
  };
}

std::string own_device(const config::TrainConfig& config) {
  return base::ranks_share_devices() ? "" : device::device_id(device::parse_device(config.model.device));
}

// Returns the device of this rank's number on its host, or the only one if the rank sees no other.
std::string device_of_rank(const std::string& backend, int local_rank) {
  return fmt::format("{}:{}", backend, device::num_devices(backend) == 1 ? 0 : local_rank);
}

}  // namespace

bool only_samples(const config::TrainConfig& config) {
  const std::optional<mesh::LaunchVariables> launch = mesh::launch_variables();
  return config.mesh.joins() || (launch && !placement_of(config).trains(*launch));
}

mesh::RankFacts own_facts(const config::TrainConfig& config, const config::RunMode& mode) {
  return {.version = TANDEM_VERSION,
          .contract = static_cast<int>(device::kBackendContract),
          .host = mesh::host_name(),
          .flags = mode.result_options,
          .device = own_device(config)};
}

std::unique_ptr<mesh::Mesh> join_ranks(const config::TrainConfig& config, const config::RunMode& mode) {
  const std::optional<mesh::LaunchVariables> launch = mesh::launch_variables();
  if (!launch) return mesh::solo_mesh();
  const config::TrainConfig own = as_this_rank(config);
  // Rank 0 logs the warnings that all ranks share; every rank reports the error that ends it.
  if (launch->rank > 0) base::set_log_level(base::LogLevel::kError);
  const mesh::Placement placement = placement_of(config);
  // A mistake in the network is reported before anything is read.
  mesh::check_hosts(*launch, config.mesh.trust_network, own_secret());
  if (launch->rank == 0 && placement.trains(*launch)) network_door(config);
  return mesh::join(mesh::party_of(*launch, placement),
                    {.timeout_s = config.mesh.timeout_s(),
                     .network_interface = config.mesh.network_interface,
                     .trust_network = config.mesh.trust_network,
                     .secret = own_secret(),
                     .version = TANDEM_VERSION,
                     .flags = mode.result_options,
                     .keeps_store = placement.trains(*launch) && is_on_several_hosts(config),
                     .tensor_size = static_cast<int>(config.mesh.tensor_model_parallel_size),
                     .device = network_of(own),
                     .device_id = own_device(own)});
}

config::TrainConfig as_this_rank(config::TrainConfig config) {
  const std::optional<mesh::LaunchVariables> launch = mesh::launch_variables();
  if (!launch) return config;
  const device::DeviceSpec device = device::parse_device(config.model.device);
  if (device::backend_of(device).is_module()) config.model.device = device_of_rank(device.backend, launch->local_rank);
  config.model.num_threads =
      mesh::threads_per_rank(config.model.num_threads, std::thread::hardware_concurrency(), launch->local_size);
  return config;
}

}  // namespace tandem::session
