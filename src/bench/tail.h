// Measures the tail of a rollout, in which few sequences are left, without and with guessed tokens. What can be guessed
// is known: another sample of each sequence's group has its text already, with every m-th token changed. The texts are
// drawn at temperature 1, as greedy texts of random weights run in circles: then they are guessed from themselves,
// whatever was changed.
#pragma once

#include "bench/model.h"
#include "bench/table.h"
#include "config/bench_config.h"

namespace tandem::bench {

// Adds rows for each number of sequences, up to eight: one without guesses, and one for each m. Checks that all of them
// have the same tokens.
void measure_tail(const BenchModel& bench, const config::BenchConfig& config, const Ceilings& ceilings,
                  BenchTable& table);

}  // namespace tandem::bench
