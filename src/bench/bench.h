// `tandem bench` measures how fast a device runs a model, against what it could at best. It returns and throws as the
// verbs of run/verbs.h do.
#pragma once

#include "config/bench_config.h"
#include "config/run_mode.h"

namespace tandem::bench {

// Measures how fast the device runs a model, against what it could at best, and whether engine and trainer agree on it.
// Returns 1 when they do not.
int bench(const config::BenchConfig& config, const config::RunMode& mode);

}  // namespace tandem::bench
