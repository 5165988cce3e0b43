#include "text/trackers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "worker/child_process.h"

namespace tandem::text {

namespace {

// The last call waits for what is on its way to the server. A run that is over should not wait much longer for that.
constexpr double kFinishSeconds = 30.0;

const std::array<Tracker, 3> kTrackers = {{
    {TrackerKind::kWandb, "wandb", "Weights & Biases", "--wandb-mode offline needs no server", {"WANDB_*", "NETRC"}},
    {TrackerKind::kTrackio,
     "trackio",
     "trackio",
     "without --trackio-space-id it needs no server",
     {"TRACKIO_*", "HF_TOKEN", "HF_HOME", "HF_TOKEN_PATH", "HF_ENDPOINT"}},
    {TrackerKind::kMlflow,
     "mlflow",
     "MLflow",
     "--mlflow-tracking-uri sqlite:///FILE needs no server",
     {"MLFLOW_*", "DATABRICKS_*", "NETRC"}},
}};
constexpr std::array kNetworkVariables = {"HTTP_PROXY",    "HTTPS_PROXY",  "ALL_PROXY",          "NO_PROXY",
                                          "http_proxy",    "https_proxy",  "all_proxy",          "no_proxy",
                                          "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "XDG_CONFIG_HOME",
                                          "XDG_CACHE_HOME"};

worker::WorkerConfig worker_config(worker::WorkerConfig config, const Tracker& tracker) {
  config.sandboxed = false;  // it talks to a server or writes a database, and runs no code of the user's
  config.writable.reset();
  config.variables.emplace(kNetworkVariables.begin(), kNetworkVariables.end());
  config.variables->insert(config.variables->end(), tracker.variables.begin(), tracker.variables.end());
  return config;
}

std::string worker_module(const Tracker& tracker) { return fmt::format("{}_sink", tracker.key); }

}  // namespace

std::string Tracker::dropped_metric() const {
  switch (kind) {
    case TrackerKind::kWandb: return "fault/wandb_dropped_records";
    case TrackerKind::kTrackio: return "fault/trackio_dropped_records";
    case TrackerKind::kMlflow: return "fault/mlflow_dropped_records";
  }
  TANDEM_CHECK(false);
}

const Tracker& tracker(TrackerKind kind) {
  const auto* const row = std::ranges::find(kTrackers, kind, &Tracker::kind);
  TANDEM_CHECK(row != kTrackers.end());
  return *row;
}

base::Json tracker_config(const WandbConfig& config) {
  return {{"mode", config.mode},   {"project", config.project}, {"team", config.team},
          {"group", config.group}, {"host", config.host},       {"directory", config.directory}};
}

base::Json tracker_config(const TrackioConfig& config) {
  return {{"project", config.project}, {"space_id", config.space_id}, {"directory", config.directory}};
}

base::Json tracker_config(const MlflowConfig& config) {
  return {{"tracking_uri", config.tracking_uri}, {"experiment_name", config.experiment_name}};
}

SinkTarget tracker_target(const worker::WorkerConfig& config, const TrackerRun& run) {
  const Tracker& row = tracker(run.kind);
  return {.name = fmt::format("{} ({})", row.name, row.without_server),
          .what = fmt::format("{}, run {}", row.name, run.run_id),
          .worker = worker_module(row),
          .config = worker_config(config, row),
          .open = {{"config", run.config}, {"run_id", run.run_id}, {"name", run.name}, {"options", run.options}},
          .finish_s = kFinishSeconds,
          .dropped_metric = row.dropped_metric()};
}

void check_tracker(const worker::WorkerConfig& config, TrackerKind kind, const base::Json& tracker_config) {
  const Tracker& row = tracker(kind);
  try {
    worker::ChildProcess child(worker_config(config, row), worker_module(row));
    child.call("check", {{"config", tracker_config}}, config.deadline_s);
  } catch (const worker::WorkerError& error) {
    throw EnvironmentError(fmt::format("cannot start {}: {}", row.name, error.what()));
  }
}

}  // namespace tandem::text
