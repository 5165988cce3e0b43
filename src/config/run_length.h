// Holds what a run has done before it goes on. Its batches may have had another size then, so the length of the whole
// run and the numbers of its steps are counted from here.
#pragma once

#include <cstdint>

#include "base/size.h"

namespace tandem::config {

struct RunProgress {
  int64_t rollouts = 0;  // finished ones; of `tandem sft`: optimizer steps
  int64_t steps = 0;     // optimizer steps
  int64_t records = 0;   // records of the data that were trained on, over all passes

  // Returns the records that are left of `all`; negative if the run is beyond them.
  int64_t records_left(int64_t all) const { return all - records; }
  // Returns the rollouts of the whole run if further ones take `batch` records each, and whole ones alone are run.
  int64_t rollouts_for(int64_t all, int64_t batch) const {
    const int64_t left = records_left(all);
    const int64_t further = left >= 0 ? left / batch : -((batch - 1 - left) / batch);  // rounded down
    return base::Size(rollouts) + further;
  }
};

}  // namespace tandem::config
