// Weights & Biases: what the user may say of it, and the sink whose child runs its own package
// (tandem_worker/wandb_sink.py).
#pragma once

#include <string>

#include "base/json.h"
#include "text/metric_sink.h"
#include "worker/worker_config.h"

namespace tandem::text {

// An empty text leaves the choice to the package: its variables (WANDB_MODE, WANDB_PROJECT, ...), its files, its
// defaults.
struct WandbConfig {
  std::string mode, project, team, group, host, run_id;
  std::string directory;  // its files are written there; empty: the run directory
  bool disable_random_suffix = false;
};

// The package is told this of a run.
struct WandbRun {
  WandbConfig config;  // with run_id and directory set
  std::string name;    // its page shows this
  base::Json options;  // the run's, without secrets
};

// Returns the target of a sink for that run. Of our environment, its process gets what every worker gets, WANDB_*, and
// what a client of the network needs: proxies and certificates.
SinkTarget wandb_target(const worker::WorkerConfig& config, const WandbRun& run);

// Asks the package whether a run could begin, in a process of its own, without a connection. EnvironmentError: it is
// not installed, or has no key for what `config` asks.
void check_wandb(const worker::WorkerConfig& config, const WandbConfig& wandb);

}  // namespace tandem::text
