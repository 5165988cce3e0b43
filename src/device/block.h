// The size of a KV block: one fact for the scheduler, which counts blocks without torch, and for the kernels.
#pragma once

#include <cstdint>

namespace tandem::device {

// This is also the tile in which attention walks the keys.
constexpr int64_t kBlockTokens = 16;

}  // namespace tandem::device
