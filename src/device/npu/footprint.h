// The NPU backend states its footprint (device/footprint.h). No torch and no CANN: it is linked into the program.
#pragma once

#include "device/footprint.h"

namespace tandem::device::npu {

// The calls of LibTorch that the operations make. Nothing relies on float64, which an NPU computes slowly if at all,
// nor on the order in which index_add_ adds.
constexpr AtenCallShape kCallShape = {
    .multiplies_bfloat16 = true, .index_add_is_unordered = true, .has_float64 = false};

extern const Footprint kFootprint;

}  // namespace tandem::device::npu
