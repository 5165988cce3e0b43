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

// Reads the arguments as `tandem train` or `tandem sft` will, so that a mistake in them is reported once and not by
// every rank. Contradictions are checked later.
RankedRun read_ranked_run(const std::string& verb, const std::vector<std::string>& arguments);

// Returns what the folder of --save holds, as text that changes when a run there saves a checkpoint. Throws
// EnvironmentError if the disk does not tell: a run that was restarted then might replace its own checkpoints.
std::string saved_state(const std::string& save);
constexpr const char* kNothingSaved = "nothing";        // of a folder that is empty or does not exist
constexpr const char* kNoCheckpoint = "no checkpoint";  // of a folder that holds something else

// Returns the arguments of the verb by which a run that has begun goes on from its last checkpoint, or begins again
// where it has none. `saved_before` is what saved_state() returned before it was first started: a checkpoint that was
// there then is another run's and is not resumed.
// A flag that is given twice has its last value, so an earlier --load does no harm.
std::vector<std::string> restarted(std::vector<std::string> arguments, const RankedRun& run,
                                   const std::string& saved_before);

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
