// Checks whether this machine keeps Tandem's promise: the engine's log-probs are the trainer's, bit for bit; the same
// run twice is the same run; and a row of a matrix product does not depend on its batch.
#pragma once

#include "bench/model.h"
#include "bench/table.h"
#include "config/bench_config.h"

namespace tandem::bench {

// Adds a line for each question. Returns false if at least one answer was wrong.
bool check_exactness(const BenchModel& bench, const config::BenchConfig& config, BenchTable& table);

}  // namespace tandem::bench
