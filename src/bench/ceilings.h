// Measures how fast this machine is at best: LibTorch's copy, sum and matrix product on the device; on the CPU the
// faster of LibTorch's product and Tandem's, and of memory and caches.
#pragma once

#include "bench/model.h"
#include "bench/work.h"

namespace tandem::bench {

Ceilings measure_ceilings(const BenchModel& bench);

}  // namespace tandem::bench
