// Decides how many processes a training run needs and starts them. This happens before LibTorch is used, because a
// launcher forks and must have one thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/verbs.h"
#include "config/run_mode.h"
#include "config/train_config.h"

namespace tandem::cli {

// The exit code of a run whose processes were started here, as --actor-num-gpus-per-node asks; nothing where this
// process is to go on itself: it is one of them, or alone. `arguments`: those of tandem train. UserError: the flags ask
// for another number of processes than were started.
std::optional<int> start_ranks(const config::TrainConfig& config, const config::RunMode& mode,
                               const std::vector<std::string>& arguments);

// UserError where a launcher has started several of what is one process.
void check_alone(const Verb& verb);

// UserError where this process is one of several: each would plan for its own device, and change other flags.
void check_fits_alone();

// `tandem launch`.
int launch_by_hand(const Verb& verb, const std::vector<std::string>& arguments);

}  // namespace tandem::cli
