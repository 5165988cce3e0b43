#include "device/cuda/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

namespace tandem::device::cuda {

bool describe_tensor(CUtensorMap& map, const void* data, const uint64_t (&sizes)[3], const uint64_t (&stride_bytes)[2],
                     const uint32_t (&box)[3]) {
  static const auto encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    const bool is_there = status == cudaSuccess && found == cudaDriverEntryPointSuccess;
    return is_there ? reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry) : nullptr;
  }();
  const uint32_t every[3] = {1, 1, 1};
  return encode != nullptr &&
         encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(data), sizes, stride_bytes, box, every,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool describe_rows(CUtensorMap& map, const void* data, int64_t num_rows, int64_t row_bytes, int64_t box_rows,
                   int64_t boxes) {
  constexpr uint64_t kBoxBytes = 128, kBoxNumbers = kBoxBytes / 2;
  const auto bytes = static_cast<uint64_t>(row_bytes);
  return describe_tensor(map, data, {kBoxNumbers, static_cast<uint64_t>(num_rows), bytes / kBoxBytes},
                         {bytes, kBoxBytes},
                         {kBoxNumbers, static_cast<uint32_t>(box_rows), static_cast<uint32_t>(boxes)});
}

}  // namespace tandem::device::cuda
