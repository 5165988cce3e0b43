// Computes the bytes of a weight store from its layout alone. No torch.
#pragma once

#include <cstdint>

#include "base/size.h"
#include "weights/layout.h"

namespace tandem::weights {

using base::Size;

// Every packed tensor of the store begins at a multiple of this: a cache line, and the widest vector register.
constexpr int64_t kTensorAlignmentBytes = 64;

// Returns the elements that a tensor of `elements` takes, with the padding before the next one.
Size aligned_elements(Size elements, Size element_bytes);

// Returns the bytes that a packed tensor takes in a store of such elements, with the padding before the next one.
Size tensor_bytes_in_store(const PackedTensor& packed, Size element_bytes);

// Returns WeightStore::bytes() of that layout.
Size store_bytes(const Layout& layout, Size element_bytes);

}  // namespace tandem::weights
