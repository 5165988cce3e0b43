// Which processes of a launch work together: the ranks that train, which come first, and behind them those that only
// sample, in engines of one or more. No torch.
#pragma once

#include "mesh/launch_variables.h"

namespace tandem::mesh {

struct Placement {
  int num_trainers = 1;  // 0: the whole launch samples, for a run that was started elsewhere
  int per_engine = 1;    // processes that hold one copy of the model between them to sample with it

  bool trains(const LaunchVariables& launch) const { return launch.rank < num_trainers; }
  // Of a process that only samples: which engine of the launch it is in, from 0.
  int engine(const LaunchVariables& launch) const { return (launch.rank - num_trainers) / per_engine; }
};

// The ranks that this process works with, as if they had been started alone: all that train, or those of its engine.
// They count from 0, also on each host. UserError: there is no rank for each place of an engine, or an engine's are on
// several hosts.
LaunchVariables party_of(const LaunchVariables& launch, const Placement& placement);

}  // namespace tandem::mesh
