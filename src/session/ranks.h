// Joins the ranks of a run, and gives this one its device.
#pragma once

#include <memory>
#include <string>

#include "config/mesh_options.h"
#include "config/model_options.h"
#include "config/run_mode.h"
#include "mesh/agreement.h"
#include "mesh/launch/launch.h"
#include "mesh/mesh.h"
#include "model/config.h"
#include "trainer/ranks.h"

namespace tandem::session {

// Returns the facts on which this process has to agree with the others. `is_inexact` is what the check of its device
// found (TrainConfig::is_inexact_device); `kernels` are those of its session.
mesh::RankFacts own_facts(const config::ModelOptions& model, const config::RunMode& mode, bool is_inexact,
                          const std::string& kernels);

// Joins the ranks that this one works with (Launch::party). Without a launcher, the mesh has one rank. `model` has this
// rank's own device. Throws UserError on every rank if they were not started alike, and EnvironmentError if some are
// missing.
std::unique_ptr<mesh::Mesh> join_ranks(const config::ModelOptions& model, const config::MeshOptions& mesh,
                                       const config::RunMode& mode, const mesh::Launch& launch, bool is_inexact);

// Returns the options with this rank's own device, and its share of the host's cores.
config::ModelOptions model_of_this_rank(config::ModelOptions model, const mesh::Launch& launch);
// Returns the configuration of a verb with those options.
template <typename Config>
Config as_this_rank(Config config, const mesh::Launch& launch) {
  config.model = model_of_this_rank(config.model, launch);
  return config;
}

// Returns the ranks of the mesh as those that take optimizer steps and score together. The mesh is borrowed.
trainer::Ranks training_ranks(const mesh::Mesh& mesh);

// Throws UserError for a model that cannot be spread over as many devices; also in a dry run, which is one process.
void check_spread(const model::ModelConfig& model, const config::MeshOptions& mesh);

}  // namespace tandem::session
