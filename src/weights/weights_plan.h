// The bytes of a weight store, from its layout alone. No torch.
#pragma once

#include <cstdint>

#include "base/size.h"
#include "weights/layout.h"

namespace tandem::weights {

using base::Size;

// Where a packed tensor begins within the store: a cache line, and the widest vector register.
constexpr int64_t kTensorAlignmentBytes = 64;

// Elements that a tensor of `elements` takes, with what lies between it and the next one.
Size aligned_elements(Size elements, Size element_bytes);

// WeightStore::bytes() of that layout.
Size store_bytes(const Layout& layout, Size element_bytes);

}  // namespace tandem::weights
