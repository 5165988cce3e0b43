// Gradients come in buckets, one after the other: that of each decoder layer ("layers.3.*"), the last layer's first,
// and then what is outside of the layers, whose gradients are there when a backward pass has ended. A bucket is named
// by its layer. No torch.
#pragma once

#include <cstdint>

namespace tandem::model {

constexpr int64_t kOuterBucket = -1;

}  // namespace tandem::model
