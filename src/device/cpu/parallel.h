// Loops over independent items on the OpenMP threads that ATen uses too (one pool for the process).
#pragma once

#include <omp.h>

#include <cstdint>

namespace tandem::device::cpu {

// f(i) for i in [0, n), in any order. `chunk` items go to a thread at a time; up to one chunk the caller does
// them all (waking threads costs a few microseconds).
template <typename Function>
void parallel_for(int num_threads, int64_t n, int64_t chunk, Function f) {
  if (num_threads <= 1 || n <= chunk) {
    for (int64_t i = 0; i < n; ++i) f(i);
    return;
  }
#pragma omp parallel for schedule(dynamic, chunk) num_threads(num_threads)
  for (int64_t i = 0; i < n; ++i) f(i);
}

}  // namespace tandem::device::cpu
