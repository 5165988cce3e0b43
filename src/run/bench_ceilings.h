// How fast this machine is at best: LibTorch's copy, sum and matrix product on the device; on the CPU the faster of
// LibTorch's product and Tandem's, and of memory and caches.
#pragma once

#include "run/bench_model.h"
#include "run/bench_work.h"

namespace tandem::run {

Ceilings measure_ceilings(const BenchModel& bench);

}  // namespace tandem::run
