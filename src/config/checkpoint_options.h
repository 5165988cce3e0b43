// Declares the options of resuming: what a training run saves to resume from, and where it resumes from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "options/options.h"

namespace tandem::config {

struct CheckpointOptions {
  std::string load;                  // run directory; empty: a new run
  std::optional<int64_t> ckpt_step;  // -1, too, is the last one, whatever a file of --config names
  bool allow_fresh_start = false;
  bool allow_changed_config = false;
  int64_t keep_latest = 2;
  std::string on_save_error = "stop";
  double stop_grace_seconds = 60.0;
  int64_t max_skipped_steps = 10;
  int64_t max_failed_rollouts = 3;

  void visit(options::Options& options);
  void check() const;
  bool continues_after_save_error() const { return on_save_error == "continue"; }
};

}  // namespace tandem::config
