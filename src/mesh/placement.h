// Says which processes of a launch work together: the ranks that train, which come first, and after them the rollout
// workers, in engines of one or more. No torch.
#pragma once

#include "mesh/launch_variables.h"

namespace tandem::mesh {

struct Placement {
  int num_trainers = 1;  // 0: the whole launch samples, for a run that was started elsewhere
  int per_engine = 1;    // number of processes in a rollout worker's tensor-parallel group

  bool trains(const LaunchVariables& launch) const { return launch.rank < num_trainers; }
  // Returns, for a rollout worker, which engine of the launch it is in, from 0.
  int engine(const LaunchVariables& launch) const { return (launch.rank - num_trainers) / per_engine; }
};

// Returns the ranks that this process works with, as if they had been started alone: all that train, or those of its
// engine. They count from 0, also on each host. Throws UserError if there is no rank for each place of an engine, or an
// engine's are on several hosts.
LaunchVariables party_of(const LaunchVariables& launch, const Placement& placement);

}  // namespace tandem::mesh
