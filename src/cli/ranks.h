// Decides how many processes a training run needs and starts them. This happens before LibTorch is used, because a
// launcher forks and must have one thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/verbs.h"
#include "config/run_mode.h"
#include "config/train_config.h"
#include "mesh/launch.h"

namespace tandem::cli {

// Returns the processes that these flags ask for.
mesh::Placement placement_of(const config::TrainConfig& config);

// Reads the arguments as `tandem train` will, so that a mistake in them is reported once and not by every rank.
// Contradictions are checked later.
config::TrainConfig train_config_of(const std::vector<std::string>& arguments);

// Returns the arguments of `tandem train` by which a run that has begun goes on from its last checkpoint, or begins
// again where it has none. A flag that is given twice has its last value, so an earlier --load does no harm.
std::vector<std::string> restarted(std::vector<std::string> arguments, const config::TrainConfig& config);

// Starts the processes that --actor-num-gpus-per-node asks for and returns the exit code of the run; nullopt if this
// process must run itself, since it is one of them, or alone. `arguments` are those of tandem train. Throws UserError
// if the flags ask for another number of processes than were started.
std::optional<int> start_ranks(const config::TrainConfig& config, const config::RunMode& mode,
                               const mesh::Launch& launch, const std::vector<std::string>& arguments);

// Throws UserError if a launcher has started several processes of a verb that needs one.
void check_alone(const Verb& verb, const mesh::Launch& launch);

// Throws UserError if this process is one of several: each would plan for its own device, and change other flags.
void check_fits_alone(const mesh::Launch& launch);

// Runs `tandem launch`.
int launch_by_hand(const Verb& verb, const std::vector<std::string>& arguments);

}  // namespace tandem::cli
