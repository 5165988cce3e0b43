#include "session/ranks.h"

#include <fmt/format.h>

#include <thread>

#include "base/env.h"
#include "base/log.h"
#include "device/backend.h"
#include "device/registry.h"
#include "mesh/hosts.h"
#include "mesh/network.h"
#include "mesh/rendezvous.h"
#include "session/run_address.h"

namespace tandem::session {

namespace {

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

mesh::RankFacts own_facts(const config::TrainConfig& config, const config::RunMode& mode) {
  return {.version = TANDEM_VERSION,
          .contract = static_cast<int>(device::kBackendContract),
          .host = mesh::host_name(),
          .flags = mode.result_options,
          .device = own_device(config)};
}

std::unique_ptr<mesh::Mesh> join_ranks(const config::TrainConfig& config, const config::RunMode& mode,
                                       const mesh::Launch& launch) {
  if (!launch.is_launched) return mesh::solo_mesh();
  const bool trains = !launch.only_samples();
  // Rank 0 logs the warnings that all ranks share; every rank reports the error that ends it.
  if (launch.processes.rank > 0) base::set_log_level(base::LogLevel::kError);
  // A mistake in the network is reported before anything is read.
  mesh::check_hosts(launch.processes, config.mesh.trust_network, launch.secret());
  if (launch.processes.rank == 0 && trains) network_door(config, launch);
  return mesh::join(launch.party(), {.timeout_s = config.mesh.timeout_s(),
                                     .network_interface = config.mesh.network_interface,
                                     .trust_network = config.mesh.trust_network,
                                     .secret = launch.secret(),
                                     .version = TANDEM_VERSION,
                                     .flags = mode.result_options,
                                     .keeps_store = trains && launch.spreads_workers(),
                                     .tensor_size = static_cast<int>(config.mesh.tensor_model_parallel_size),
                                     .device = network_of(config),
                                     .device_id = own_device(config)});
}

config::TrainConfig as_this_rank(config::TrainConfig config, const mesh::Launch& launch) {
  if (!launch.is_launched) return config;
  const device::DeviceSpec device = device::parse_device(config.model.device);
  if (device::backend_of(device).is_module())
    config.model.device = device_of_rank(device.backend, launch.processes.local_rank);
  config.model.num_threads = mesh::threads_per_rank(config.model.num_threads, std::thread::hardware_concurrency(),
                                                    launch.processes.local_size);
  return config;
}

}  // namespace tandem::session
