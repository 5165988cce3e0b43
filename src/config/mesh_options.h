// Declares the options for the number of devices that train or only sample, and for how their processes communicate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "options/options.h"

namespace tandem::config {

struct MeshOptions {
  int64_t actor_num_nodes = 1, actor_num_gpus_per_node = 1;
  std::optional<int64_t> num_gpus_per_node;  // says the same again, as other trainers do
  int64_t tensor_model_parallel_size = 1;    // devices that hold one copy of the model between them
  bool sequence_parallel = false;            // whether they share the rows between its products, in training
  bool rollout_expert_parallel = false;      // whether devices with whole copies share experts while they sample
  double timeout_minutes = 10.0;             // of joining, and of one wait for another rank
  std::string backend;                       // "": the device's own, and within a machine none where it needs none
  std::string network_interface;             // "": the one that reaches rank 0's host
  bool trust_network = false;
  bool unchecked_ranks = false;
  std::optional<int64_t> rollout_num_gpus;             // without --colocate: devices of workers; 0: all of them join
  std::optional<int64_t> rollout_num_gpus_per_engine;  // --tensor-model-parallel-size again, as other trainers do
  std::optional<int64_t> rollout_listen;  // port at which rollout workers may join from other machines; 0: any
  bool rollout_join = false;              // this process joins a running run as a rollout worker
  std::string rollout_join_address;       // HOST:PORT of such a run on another machine; "": on this one
  double rollout_health_check_timeout = 60.0;
  int64_t update_weight_buffer_size = int64_t{64} << 20;

  void visit(options::Options& options);
  // Declares those of the devices that train alone, without the ones about sampling.
  void visit_trainers(options::Options& options);

  // Throws UserError, with the remedy, if these flags contradict each other or --device.
  void check(const std::string& device) const;
  // Throws UserError if the flags about rollout workers contradict each other; with `colocate` trainers sample.
  void check_rollout(bool colocate) const;
  // Checks --device as the user gave it, before each rank takes its own: it must not name one for all of them, and
  // several ranks on a kind of device where nobody has tried that need --unchecked-ranks.
  void check_ranks(const std::string& device) const;

  // Throws UserError if devices cannot share experts.
  void check_expert_parallel(const std::string& device) const;

  int64_t num_ranks() const { return actor_num_nodes * actor_num_gpus_per_node; }
  int64_t num_data_ranks() const { return num_ranks() / tensor_model_parallel_size; }
  // Returns how many of the processes that start together are rollout workers.
  int64_t num_workers(bool colocate) const { return colocate ? 0 : rollout_num_gpus.value_or(0); }
  // Returns whether this process joins a running run as a rollout worker.
  bool joins() const { return rollout_join || !rollout_join_address.empty(); }
  double timeout_s() const { return timeout_minutes * 60.0; }
};

}  // namespace tandem::config
