// How many devices train, and how their processes talk.
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
  double timeout_minutes = 10.0;             // of joining, and of one wait for another rank
  std::string backend;                       // "": nccl on cuda, gloo on cpu
  std::string network_interface;             // "": the one that reaches rank 0's host
  bool trust_network = false;

  void visit(base::Options& options);

  // UserError, with the remedy, where these flags contradict each other or --device.
  void check(const std::string& device) const;
  // --device as the user gave it, before each rank takes its own: it must not name one for all of them.
  void check_names_no_device(const std::string& device) const;

  int64_t num_ranks() const { return actor_num_nodes * actor_num_gpus_per_node; }
  int64_t num_data_ranks() const { return num_ranks() / tensor_model_parallel_size; }
  double timeout_s() const { return timeout_minutes * 60.0; }
};

}  // namespace tandem::config
