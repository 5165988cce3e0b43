// Asks the current device for the limits by which kernels are chosen. No torch.
#pragma once

#include "device/cuda/kernel_choice.h"

namespace tandem::device::cuda {

// Asks once: all devices that a process uses are alike. Returns zeros where the device does not answer, for which no
// kernel with demands of its own is chosen.
const GpuLimits& gpu_limits();

}  // namespace tandem::device::cuda
