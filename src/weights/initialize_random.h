// Draws random weights of a large model on several threads. store.h has the declaration for a small one.
#pragma once

#include <cstdint>

#include "weights/store.h"

namespace tandem::weights {

// Does what initialize_random() of store.h does on num_threads threads; the numbers are the same. Throws
// EnvironmentError if the machine refuses a thread.
void initialize_random(WeightStore& store, double initializer_range, uint64_t seed, uint64_t first_stream,
                       int num_threads);

}  // namespace tandem::weights
