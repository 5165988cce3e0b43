// How many devices train, how many only sample, and how their processes talk.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/options.h"

namespace tandem::config {

struct MeshOptions {
  int64_t actor_num_nodes = 1, actor_num_gpus_per_node = 1;
  std::optional<int64_t> num_gpus_per_node;  // says the same again, as other trainers do
  int64_t tensor_model_parallel_size = 1;    // devices that hold one copy of the model between them
  bool sequence_parallel = false;            // whether they share the rows between its products, in training
  double timeout_minutes = 10.0;             // of joining, and of one wait for another rank
  std::string backend;            // "" and "gloo": sockets on cpu; "": on cuda nccl, and within a machine none
  std::string network_interface;  // "": the one that reaches rank 0's host
  bool trust_network = false;
  std::optional<int64_t> rollout_num_gpus;             // without --colocate: devices that only sample
  std::optional<int64_t> rollout_num_gpus_per_engine;  // says --tensor-model-parallel-size again, as other trainers do
  std::optional<int64_t> rollout_listen;               // port at which others may join from other machines; 0: any
  bool rollout_join = false;                           // this process is one more of them, of a run that goes on
  std::string rollout_join_address;                    // HOST:PORT of such a run on another machine; "": on this one
  double rollout_health_check_timeout = 60.0;
  int64_t update_weight_buffer_size = int64_t{512} << 20;

  void visit(base::Options& options);

  // UserError, with the remedy, where these flags contradict each other or --device.
  void check(const std::string& device) const;
  // UserError where what is said of devices that sample contradicts itself; `colocate`: trainers sample.
  void check_rollout(bool colocate) const;
  // --device as the user gave it, before each rank takes its own: it must not name one for all of them.
  void check_names_no_device(const std::string& device) const;

  int64_t num_ranks() const { return actor_num_nodes * actor_num_gpus_per_node; }
  int64_t num_data_ranks() const { return num_ranks() / tensor_model_parallel_size; }
  // Processes that only sample, of those that are started together.
  int64_t num_workers(bool colocate) const { return colocate ? 0 : rollout_num_gpus.value_or(0); }
  // Whether this process is one more of them, of a run that goes on.
  bool joins() const { return rollout_join || !rollout_join_address.empty(); }
  double timeout_s() const { return timeout_minutes * 60.0; }
};

}  // namespace tandem::config
