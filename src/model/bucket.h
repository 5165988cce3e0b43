// Gradients come in buckets, one after the other. Each decoder layer ("layers.3.*") has one, which is named by its
// number; the last layer's comes first. The outer bucket has what is outside of the layers, whose gradients are there
// when a backward pass has ended. No torch.
#pragma once

#include <cstdint>

namespace tandem::model {

constexpr int64_t kOuterBucket = -1;

}  // namespace tandem::model
