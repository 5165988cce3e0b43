// Random weights of a large model, drawn on several threads. Those of a small one: store.h.
#pragma once

#include <cstdint>

#include "weights/store.h"

namespace tandem::weights {

// initialize_random() of store.h with num_threads threads at work; the numbers are the same. Throws EnvironmentError
// where the machine refuses a thread.
void initialize_random(WeightStore& store, double initializer_range, uint64_t seed, uint64_t first_stream,
                       int num_threads);

}  // namespace tandem::weights
