// The CUDA backend states its footprint (device/footprint.h). No torch and no CUDA: it is linked into the program.
#pragma once

#include <cstdint>

#include "device/footprint.h"

namespace tandem::device::cuda {

// A context of CUDA 13 on an H200, before anything is computed.
constexpr int64_t kContextBytes = int64_t{620} << 20;

extern const Footprint kFootprint;

}  // namespace tandem::device::cuda
