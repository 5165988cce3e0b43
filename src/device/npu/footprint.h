// The NPU backend states its footprint (device/footprint.h). No torch and no CANN: it is linked into the program.
#pragma once

#include "device/footprint.h"

namespace tandem::device::npu {

extern const Footprint kFootprint;

}  // namespace tandem::device::npu
