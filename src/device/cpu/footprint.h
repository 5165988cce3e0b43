// The CPU states its footprint here (device/footprint.h). No torch.
#pragma once

#include "device/footprint.h"

namespace tandem::device::cpu {

extern const Footprint kFootprint;

}  // namespace tandem::device::cpu
