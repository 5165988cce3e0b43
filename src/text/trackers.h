// Experiment trackers (Weights & Biases, trackio, MLflow): what the user may say of each, and the sink whose child runs
// the tracker's own package. All children answer the same calls (tandem_worker/tracker.py), so a tracker is a row in
// trackers.cc and a module of tandem_worker.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/metric_sink.h"
#include "worker/worker_config.h"

namespace tandem::text {

enum class TrackerKind : uint8_t { kWandb, kTrackio, kMlflow };

// In each of these an empty text leaves the choice to the package: its variables (WANDB_MODE, MLFLOW_TRACKING_URI,
// TRACKIO_DIR, ...), its files, its defaults.
struct WandbConfig {
  std::string mode, project, team, group, host, run_id;
  std::string directory;  // its files are written there; empty: the run directory
  bool disable_random_suffix = false;
};
struct TrackioConfig {
  std::string project, run_name;
  std::string space_id;   // the Hugging Face Space that shows the run; empty: none, so nothing leaves the machine
  std::string directory;  // holds its databases
};
struct MlflowConfig {
  std::string tracking_uri, experiment_name, run_name;
};

struct Tracker {
  TrackerKind kind;
  const char* key;                     // "wandb", as in --use-wandb, RUN/wandb_run_id, fault/wandb_dropped_records
  const char* name;                    // "Weights & Biases"
  const char* without_server;          // "--wandb-mode offline needs no server"
  std::vector<const char*> variables;  // its process gets these of our environment, next to what every tracker gets
  std::string dropped_metric() const;  // the name of the metric that counts records that its process did not take
};

// Returns the row of a tracker.
const Tracker& tracker(TrackerKind kind);

// A run as its tracker is told of it.
struct TrackerRun {
  TrackerKind kind = TrackerKind::kWandb;
  base::Json config;   // tracker_config() of the user's choices
  std::string run_id;  // the same id is the same run there, also after a resume
  std::string name;    // the tracker's page shows this
  base::Json options;  // the run's, without secrets
};

// Return what the tracker's process is told of the user's choices.
base::Json tracker_config(const WandbConfig& config);
base::Json tracker_config(const TrackioConfig& config);
base::Json tracker_config(const MlflowConfig& config);

// Returns the target of a sink for that run. Of our environment, its process gets what every worker gets, the tracker's
// own variables, and what a client of the network needs: proxies and certificates.
SinkTarget tracker_target(const worker::WorkerConfig& config, const TrackerRun& run);

// Asks the package whether a run could begin, in a process of its own, without a connection. EnvironmentError: it is
// not installed, or lacks a key or an address for what `tracker_config` asks.
void check_tracker(const worker::WorkerConfig& config, TrackerKind kind, const base::Json& tracker_config);

}  // namespace tandem::text
