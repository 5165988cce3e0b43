// The number of processes that grade, and what each of them may take.
#pragma once

#include <cstdint>

namespace tandem::reward {

struct GraderLimits {
  int64_t num_processes = 2;                // > 0
  int64_t max_calls = 64;                   // calls of an async function that one process has under way at once, > 0
  double deadline_s = 30.0;                 // the limit of a call, for each sample that it holds, > 0
  int64_t memory_bytes = int64_t{2} << 30;  // the limit of each process
  bool fork_each_call = false;              // a function's process makes one call, and another one the next
};

}  // namespace tandem::reward
