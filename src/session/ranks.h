// Determines which rank of a run this process is, and what its parts need to know of the other ranks.
#pragma once

#include <memory>

#include "config/run_mode.h"
#include "config/train_config.h"
#include "mesh/agreement.h"
#include "mesh/mesh.h"

namespace tandem::session {

// Returns whether this process is a rollout worker: it was started as one, or with --rollout-join.
bool only_samples(const config::TrainConfig& config);
// Returns the facts on which this process has to agree with the others.
mesh::RankFacts own_facts(const config::TrainConfig& config, const config::RunMode& mode);

// Joins the ranks that this one works with (mesh/placement.h), among those that a launcher started: all that train or,
// for a rollout worker, those of its engine. Without a launcher, the mesh has one rank. Throws UserError on every rank
// if they were not started alike, and EnvironmentError if some are missing.
std::unique_ptr<mesh::Mesh> join_ranks(const config::TrainConfig& config, const config::RunMode& mode);
// Returns the configuration with this rank's own device, and its share of the host's cores.
config::TrainConfig as_this_rank(config::TrainConfig config);

}  // namespace tandem::session
