// How fast this machine is at best: LibTorch's copy, sum and matrix product on the device.
#pragma once

#include "run/bench_model.h"
#include "run/bench_work.h"

namespace tandem::run {

Ceilings measure_ceilings(const BenchModel& bench);

}  // namespace tandem::run
