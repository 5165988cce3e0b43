#include "session/ranks.h"

#include <fmt/format.h>

#include "base/env.h"
#include "base/log.h"
#include "base/version.h"
#include "device/backend.h"
#include "device/registry.h"
#include "device/thread_pool.h"
#include "mesh/hosts.h"
#include "mesh/network.h"
#include "mesh/rendezvous.h"
#include "session/run_address.h"

namespace tandem::session {

namespace {

// Returns the network of devices that have one of their own.
mesh::DeviceNetwork network_of(const config::ModelOptions& model, const config::MeshOptions& mesh) {
  const device::DeviceSpec device = device::parse_device(model.device);
  if (device::footprint_of(device).shares_host_memory) return {};
  // A device that cannot be used is found before anybody waits for this rank.
  device::make_ops(device, {.num_threads = static_cast<int>(model.num_threads)});
  return [device, mesh](device::Communicator& hosts, bool is_one_host) {
    return device::make_communicator(device, {.hosts = hosts,
                                              .shares_memory = is_one_host && mesh.backend.empty(),
                                              .timeout_s = mesh.timeout_s(),
                                              .interface = mesh.network_interface});
  };
}

std::string own_device(const config::ModelOptions& model) {
  return base::ranks_share_devices() ? "" : device::device_id(device::parse_device(model.device));
}

// Returns the device of this rank's number on its host, or the only one if the rank sees no other.
std::string device_of_rank(const std::string& backend, int local_rank) {
  return fmt::format("{}:{}", backend, device::num_devices(backend) == 1 ? 0 : local_rank);
}

}  // namespace

mesh::RankFacts own_facts(const config::ModelOptions& model, const config::RunMode& mode, bool is_inexact,
                          const std::string& kernels) {
  return {.version = base::kVersion,
          .contract = static_cast<int>(device::kBackendContract),
          .host = mesh::host_name(),
          .flags = mode.result_options,
          .device = own_device(model),
          .is_inexact = is_inexact,
          .kernels = kernels};
}

std::unique_ptr<mesh::Mesh> join_ranks(const config::ModelOptions& model, const config::MeshOptions& mesh,
                                       const config::RunMode& mode, const mesh::Launch& launch, bool is_inexact) {
  if (!launch.is_launched) return mesh::solo_mesh();
  const bool trains = !launch.only_samples();
  // A mistake in the network is reported before anything is read. Every rank says for itself that it waits for a name:
  // its machine may be the only one that does not know it.
  mesh::check_hosts(launch.processes, mesh.trust_network, launch.secret(), mesh.timeout_s());
  // Rank 0 logs the warnings that all ranks share; every rank reports the error that ends it.
  if (launch.processes.rank > 0) base::set_log_level(base::LogLevel::kError);
  if (launch.processes.rank == 0 && trains) network_door(mesh, launch);
  return mesh::join(launch.party(), {.timeout_s = mesh.timeout_s(),
                                     .network_interface = mesh.network_interface,
                                     .trust_network = mesh.trust_network,
                                     .secret = launch.secret(),
                                     .version = base::kVersion,
                                     .flags = mode.result_options,
                                     .keeps_store = trains && launch.spreads_workers(),
                                     .tensor_size = static_cast<int>(mesh.tensor_model_parallel_size),
                                     .is_inexact = is_inexact,
                                     .device = network_of(model, mesh),
                                     .device_id = own_device(model)});
}

config::ModelOptions model_of_this_rank(config::ModelOptions model, const mesh::Launch& launch) {
  if (!launch.is_launched) return model;
  const device::DeviceSpec device = device::parse_device(model.device);
  if (device::backend_of(device).is_module())
    model.device = device_of_rank(device.backend, launch.processes.local_rank);
  model.num_threads = mesh::threads_per_rank(model.num_threads, device::usable_cores(), launch.processes.local_size);
  return model;
}

trainer::Ranks training_ranks(const mesh::Mesh& mesh) {
  return {.device = mesh.data().device, .host = mesh.data().host, .parts = mesh.tensor().host};
}

void check_spread(const model::ModelConfig& model, const config::MeshOptions& mesh) {
  if (model.shard.is_whole())
    model::shard_of(model, {.rank = 0, .size = static_cast<int>(mesh.tensor_model_parallel_size)});
}

}  // namespace tandem::session
