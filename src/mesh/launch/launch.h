// The place of this process among those of a run that were started together, by torchrun, Slurm, MPI or
// `tandem launch`: the first ones train, and after them come the rollout workers, in engines of one or more. The
// program makes this value once, at its start, and everything that depends on it is asked of it. No torch.
#pragma once

#include <cstdint>
#include <string>

#include "mesh/launch/launch_variables.h"

namespace tandem::mesh {

// Counts the processes that the flags of a run ask for.
struct Placement {
  int64_t num_hosts = 1, trainers_per_host = 1;  // --actor-num-nodes, --actor-num-gpus-per-node
  int64_t num_workers = 0;                       // number of rollout workers that are started with the run
  int64_t per_engine = 1;                        // number of processes in a tensor-parallel group
  bool joins = false;  // true: all of the launch sample, for a run that was started elsewhere and has the numbers above

  int64_t num_trainers() const { return num_hosts * trainers_per_host; }
  int64_t num_engines() const { return num_workers / per_engine; }
  // Returns how many processes of one host train. The host has `count` of them, which are numbered through the whole
  // run, from `first` on.
  int64_t num_trainers_among(int64_t first, int64_t count) const;
  // Throws UserError unless all trainers_per_host of them train, or none; `source` tells how they were started.
  void check_host(int64_t first, int64_t count, const std::string& source) const;
};

struct Launch {
  bool is_launched = false;        // whether a launcher has started this process; if not, it is alone
  LaunchVariables processes = {};  // every process of the launch: who this one is, its host's, and where they meet
  Placement placement = {};
  std::string secret_file = "";  // "": this process was given no secret

  // Returns whether this process is a rollout worker: it was started as one, or joins a run.
  bool only_samples() const { return placement.joins || processes.rank >= placement.num_trainers(); }
  // Returns whether there are rollout workers in this launch, and several hosts.
  bool spreads_workers() const { return !processes.is_one_host() && placement.num_workers > 0 && !placement.joins; }
  // Returns the ranks that this process works with, as if they had been started alone: all that train or, for a rollout
  // worker, those of its engine. They count from 0, also on each host. Throws UserError if there is no rank for each
  // place of an engine, or an engine's are on several hosts.
  LaunchVariables party() const;
  // Returns the secret by which processes on several hosts know each other, or "". Throws UserError if its file is not
  // as mesh/secret.h wants it.
  std::string secret() const;
};

// Reads the variables of this process. Throws UserError as read_launch_variables() does.
Launch own_launch(const Placement& placement = {});

}  // namespace tandem::mesh
