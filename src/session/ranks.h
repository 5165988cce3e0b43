// Joins the ranks of a run, and gives this one its device.
#pragma once

#include <memory>

#include "config/run_mode.h"
#include "config/train_config.h"
#include "mesh/agreement.h"
#include "mesh/launch.h"
#include "mesh/mesh.h"

namespace tandem::session {

// Returns the facts on which this process has to agree with the others.
mesh::RankFacts own_facts(const config::TrainConfig& config, const config::RunMode& mode);

// Joins the ranks that this one works with (Launch::party). Without a launcher, the mesh has one rank. `config` has
// this rank's own device. Throws UserError on every rank if they were not started alike, and EnvironmentError if some
// are missing.
std::unique_ptr<mesh::Mesh> join_ranks(const config::TrainConfig& config, const config::RunMode& mode,
                                       const mesh::Launch& launch);
// Returns the configuration with this rank's own device, and its share of the host's cores.
config::TrainConfig as_this_rank(config::TrainConfig config, const mesh::Launch& launch);

}  // namespace tandem::session
