// Which rank of a run this process is, and what its parts are told of the others.
#pragma once

#include <memory>

#include "config/run_mode.h"
#include "config/train_config.h"
#include "mesh/agreement.h"
#include "mesh/mesh.h"

namespace tandem::session {

// Whether this process only samples: it was started as one of them, or with --rollout-join.
bool only_samples(const config::TrainConfig& config);
// What this process is, for those whom it has to agree with.
mesh::RankFacts own_facts(const config::TrainConfig& config, const config::RunMode& mode);

// Joins the ranks that this one works with (mesh/placement.h), of those that a launcher started: all that train, or, of
// a process that only samples, those of its engine. Without a launcher, a mesh of one. UserError, on every rank: they
// were not started alike. EnvironmentError: some are missing.
std::unique_ptr<mesh::Mesh> join_ranks(const config::TrainConfig& config, const config::RunMode& mode);
// The configuration with this rank's own device, and its share of the host's cores.
config::TrainConfig as_this_rank(config::TrainConfig config);

}  // namespace tandem::session
