// Reports a training run to experiment trackers.
#pragma once

#include <vector>

#include "base/json.h"
#include "checkpoint/run_directory.h"
#include "config/tracker_options.h"
#include "text/metric_sink.h"

namespace tandem::run {

// Call it before the weights are read: throws EnvironmentError, with the remedy, if a tracker could not begin, and
// UserError for an id or a name that none can have.
void check_trackers(const config::TrackerOptions& options);

// Returns a target for each tracker that the options ask for. The directory has been created. A run keeps its id in
// NAME_run_id there, so that --load into the same directory continues it; --wandb-run-id beats it. `values` are all
// options, without secrets.
std::vector<text::SinkTarget> trackers(const config::TrackerOptions& options, const checkpoint::RunDirectory& directory,
                                       const base::Json& values);

}  // namespace tandem::run
