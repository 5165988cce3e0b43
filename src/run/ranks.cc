#include "run/ranks.h"

#include <fmt/format.h>

#include <optional>
#include <thread>

#include "base/env.h"
#include "base/log.h"
#include "device/backend.h"
#include "device/registry.h"
#include "mesh/launch_variables.h"
#include "mesh/network.h"
#include "mesh/rendezvous.h"
#include "mesh/secret.h"

namespace tandem::run {

namespace {

// The network of devices that have one of their own.
mesh::DeviceNetwork network_of(const config::TrainConfig& config) {
  const device::DeviceSpec device = device::parse_device(config.model.device);
  if (device.backend == "cpu") return {};
  // A device that cannot be used is found before anybody waits for this rank.
  device::make_ops(device, {.num_threads = static_cast<int>(config.model.num_threads)});
  const std::string interface = config.mesh.network_interface;
  const double timeout_s = config.mesh.timeout_s();
  return {.make_id = [device, interface] { return device::make_communicator_id(device, interface); },
          .make =
              [device, interface, timeout_s](const std::string& id, int rank, int size, bool adds_up) {
                return device::make_communicator(device, {.id = id,
                                                          .rank = rank,
                                                          .size = size,
                                                          .timeout_s = timeout_s,
                                                          .adds_up = adds_up,
                                                          .interface = interface});
              }};
}

}  // namespace

bool only_samples(const config::TrainConfig& config) {
  const std::optional<mesh::LaunchVariables> launch = mesh::launch_variables();
  return config.mesh.rollout_join || (launch && launch->rank >= config.mesh.num_ranks());
}

mesh::RankFacts own_facts(const config::RunMode& mode) {
  return {.version = TANDEM_VERSION,
          .contract = static_cast<int>(device::kBackendContract),
          .host = mesh::host_name(),
          .flags = mode.result_options};
}

std::unique_ptr<mesh::Mesh> join_ranks(const config::TrainConfig& config, const config::RunMode& mode) {
  std::optional<mesh::LaunchVariables> launch = mesh::launch_variables();
  if (!launch) return mesh::solo_mesh();
  // Behind the ranks that train come processes that only sample, which are no part of the mesh.
  const auto num_workers = static_cast<int>(config.mesh.num_workers(config.colocate));
  launch->size -= num_workers;
  launch->local_size -= num_workers;
  // The conductor says what all would say; what ends this rank is said all the same.
  if (launch->rank > 0) base::set_log_level(base::LogLevel::kError);
  const std::string secret_file = base::secret_file();
  return mesh::join(*launch, {.timeout_s = config.mesh.timeout_s(),
                              .network_interface = config.mesh.network_interface,
                              .trust_network = config.mesh.trust_network,
                              .secret = secret_file.empty() ? "" : mesh::read_secret(secret_file),
                              .version = TANDEM_VERSION,
                              .flags = mode.result_options,
                              .tensor_size = static_cast<int>(config.mesh.tensor_model_parallel_size),
                              .device = network_of(as_this_rank(config))});
}

config::TrainConfig as_this_rank(config::TrainConfig config) {
  const std::optional<mesh::LaunchVariables> launch = mesh::launch_variables();
  if (!launch) return config;
  const device::DeviceSpec device = device::parse_device(config.model.device);
  if (device.backend != "cpu") config.model.device = fmt::format("{}:{}", device.backend, launch->local_rank);
  config.model.num_threads =
      mesh::threads_per_rank(config.model.num_threads, std::thread::hardware_concurrency(), launch->local_size);
  return config;
}

}  // namespace tandem::run
