// Declares the options for the files that a run writes, and how often.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/tracker_options.h"
#include "options/options.h"

namespace tandem::config {

// The parts of a step that are written: checkpoints/, to resume from; hf/, the weights alone; or both.
enum class SavedParts : uint8_t { kCheckpoint, kExport, kBoth };

struct OutputOptions {
  std::string save;
  // If it is unset, checkpoints/ are written every default_save_interval, hf/ at the end alone.
  std::optional<int64_t> save_interval;
  // Losing ten rollouts to a power cut is bearable, and writing 12 bytes per parameter with each tenth does not show.
  int64_t default_save_interval = 10;
  bool overwrite = false;
  bool use_tensorboard = true;
  TrackerOptions trackers;
  int64_t sample_dump_interval = 1;     // 0: none
  std::string save_debug_rollout_data;  // "path/{rollout_id}.jsonl"
  bool log_passrate = false;
  std::string save_best;  // metric of evaluations, "eval/NAME"; "": none

  void visit(options::Options& options);
  void visit_run(options::Options& options);  // all but the options about rollouts
  // Returns what is written after `step`, if anything.
  std::optional<SavedParts> parts_due(int64_t step, int64_t num_steps) const;
  // Returns the number of checkpoints and exports that a run of `num_steps` writes; those of the first `begin` steps
  // exist already.
  int64_t num_checkpoints(int64_t num_steps, int64_t begin = 0) const;
  int64_t num_exports(int64_t num_steps, int64_t begin = 0) const;
};

}  // namespace tandem::config
