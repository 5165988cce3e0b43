// The bytes of a weight store, from its layout alone. No torch.
#pragma once

#include <cstdint>

#include "weights/layout.h"

namespace tandem::weights {

// Where a packed tensor begins within the store: a cache line, and the widest vector register.
constexpr int64_t kTensorAlignmentBytes = 64;

// Elements that a tensor of `elements` takes, with what lies between it and the next one.
int64_t aligned_elements(int64_t elements, int64_t element_bytes);

// WeightStore::bytes() of that layout.
int64_t store_bytes(const Layout& layout, int64_t element_bytes);

}  // namespace tandem::weights
