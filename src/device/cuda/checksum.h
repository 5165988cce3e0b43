// Computes the checksum of device/checksum.h on a GPU, at the speed of its memory. No torch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/checksum.h"

namespace tandem::device::cuda {

// Adds the checksum of the bytes to `sum`, which lies on the device. `data` is 16-byte aligned.
cudaError_t add_checksum(const void* data, int64_t num_bytes, Checksum* sum, cudaStream_t stream);

}  // namespace tandem::device::cuda
