// Says what a cluster's scheduler has to reserve for a run, and with which arguments its processes start there. It is
// what python/tandem/ray.py reads, which so reads no flags of a run itself.
#pragma once

#include <string>
#include <vector>

#include "cli/verbs.h"

namespace tandem::cli {

// Runs `tandem placement`: prints one JSON object.
//   verb              "train" or "sft": what each process runs
//   resource          what the devices are counted as: "GPU", "CPU"
//   visible_devices   the variable that says which devices a process sees; "" if there is none
//   hosts, devices_per_host       machines that train, and devices of each
//   engines, devices_per_engine   engines that sample, each on one machine; 0 with --colocate and for sft
//   max_restarts, wait_minutes    as they were given
//   train             arguments of `tandem launch ... -- VERB` on each machine that trains
//   join              the same for an engine, without the run's address
// Throws UserError as that verb would for the same flags.
int print_placement(const Verb& verb, const std::vector<std::string>& arguments);

}  // namespace tandem::cli
