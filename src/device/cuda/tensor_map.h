// Descriptions of tensors for the copy engine of Hopper GPUs (warpgroups.cuh), made on the host. No torch.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace tandem::device::cuda {

// Describes bfloat16 numbers, `sizes` of them innermost first, of which a copy takes a box. The innermost size of a box
// is 64, a row of 128 bytes; what is outside the tensor is copied as 0. Returns false where the driver refuses.
bool describe_tensor(CUtensorMap& map, const void* data, const uint64_t (&sizes)[3], const uint64_t (&stride_bytes)[2],
                     const uint32_t (&box)[3]);

// Describes rows of so many bytes, a multiple of 128, as numbers of two bytes. A copy takes `boxes` boxes, 128 bytes of
// each row after the ones before, of `box_rows` rows each. Returns false where the driver refuses.
bool describe_rows(CUtensorMap& map, const void* data, int64_t num_rows, int64_t row_bytes, int64_t box_rows,
                   int64_t boxes);

}  // namespace tandem::device::cuda
