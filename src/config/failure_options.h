// Declares the options of `tandem plan` about failures: how long a run is, and how often its hosts fail.
#pragma once

#include <cstdint>
#include <optional>

#include "options/options.h"

namespace tandem::config {

struct FailureOptions {
  std::optional<int64_t> hosts = {};  // of the run; without it nothing is said about failures
  double run_days = 30.0;
  // One device's. "The Llama 3 Herd of Models", section 3.3.4, counts 419 unexpected interruptions in 54 days on 16,384
  // GPUs.
  double hours_between_failures = 50'700.0;
  std::optional<double> checkpoint_seconds = {};  // that a checkpoint keeps the run from training
  int64_t save_bytes_per_second = 1'000'000'000;  // with which it is written, where that is not said
  double restart_minutes = 15.0;                  // from a failure to the first step after it
  double repair_hours = 24.0;                     // that a host which failed is missing
  std::optional<double> step_seconds = {};        // that a rollout takes with its training

  void visit(options::Options& options);
  // Throws UserError if `processes` processes, one for each device, are no whole number a host.
  void check(int64_t processes) const;
};

}  // namespace tandem::config
