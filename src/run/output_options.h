// What a run writes, and how often.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/options.h"

namespace tandem::run {

struct OutputOptions {
  std::string save;
  std::optional<int64_t> save_interval;  // unset: only at the end
  bool overwrite = false;
  bool use_tensorboard = true;
  int64_t sample_dump_interval = 1;     // 0: none
  std::string save_debug_rollout_data;  // "path/{rollout_id}.jsonl"
  bool log_passrate = false;

  void visit(base::Options& options);
  // Checkpoints that a run of `num_steps` writes.
  int64_t num_checkpoints(int64_t num_steps) const;
  bool is_save_step(int64_t step, int64_t num_steps) const;
};

}  // namespace tandem::run
