// Decides how many processes a run of `tandem train` or `tandem sft` needs and starts them. This happens before
// LibTorch is used, because a launcher forks and must have one thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/verbs.h"
#include "config/checkpoint_options.h"
#include "config/run_mode.h"
#include "config/sft_config.h"
#include "config/train_config.h"
#include "mesh/launch/launch.h"

namespace tandem::cli {

// Holds what the launch of a run needs to know of its flags.
struct RankedRun {
  const char* verb;  // "train" or "sft"
  config::MeshOptions mesh;
  mesh::Placement placement;  // processes that the flags ask for
  std::string device;         // --device
  std::string save;           // --save
  config::CheckpointOptions checkpoints;
  std::function<void()> check;  // throws UserError if flags contradict each other

  int64_t num_processes() const { return placement.num_trainers() + placement.num_workers; }
};
RankedRun ranked_run(const config::TrainConfig& config);
RankedRun ranked_run(const config::SftConfig& config);

// Returns whether the word is a verb whose processes are the ranks of a run.
bool is_ranked_verb(const std::string& word);

// Reads the arguments as `tandem train` or `tandem sft` will, so that a mistake in them is reported once and not by
// every rank. `reader` is the verb that reads them, "launch" or "placement", and begins the message where they ask for
// help. Contradictions are checked later.
RankedRun read_ranked_run(const std::string& reader, const std::string& verb,
                          const std::vector<std::string>& arguments);

// Starts the processes that --actor-num-gpus-per-node asks for and returns the exit code of the run; nullopt if this
// process must run itself, since it is one of them, or alone. `arguments` are those of the verb. Throws UserError if
// the flags ask for another number of processes than were started.
std::optional<int> start_ranks(const RankedRun& run, const config::RunMode& mode, const mesh::Launch& launch,
                               const std::vector<std::string>& arguments);

// Throws UserError if this process is one of several: each would plan for its own device, and change other flags.
void check_fits_alone(const mesh::Launch& launch);

// Runs `tandem launch`.
int launch_by_hand(const Verb& verb, const std::vector<std::string>& arguments);

}  // namespace tandem::cli
