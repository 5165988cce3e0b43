// Programmatic dependent launch of small kernels, from compute capability 9.0 on: a kernel is set up while the one
// before it still runs, which pays where both take a few microseconds.
//
// A kernel that is launched by launch_dependent() calls wait_for_inputs() before it touches memory that an earlier
// kernel may have written, or still reads. Since all of them do, all earlier kernels are done when it returns. What the
// next kernel may read before its own wait depends on where this one calls let_next_begin():
//   after wait_for_inputs()    the results of all kernels but this one, as the kernels of experts do, and what follows
//   before wait_for_inputs()   what no kernel of a step writes: weights, and the input of the step. Several kernels can
//                              then be set up behind one that still runs, and the last of them reads its weight
//                              meanwhile (few_rows.h).
// Kernels whose successor may read older results call it after the wait: those of routes and of experts' products.
// No kernel that calls let_next_begin() writes weights.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tandem::device::cuda {

// It pays up to so many rows of a batch: for larger ones the kernels take much longer than their launch.
constexpr int64_t kDependentRows = 256;

__device__ inline void wait_for_inputs() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel be set up from now on.
__device__ inline void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns whether the code that the GPU runs of a kernel waits in wait_for_inputs(). Code for older architectures does
// not, even where a newer GPU has compiled it for itself.
inline bool knows_to_wait(const void* kernel) {
  cudaFuncAttributes attributes = {};
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90;
}

// Launches kernel<<<grid, block, shared_bytes, stream>>>(arguments...), set up early where rows are few.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_dependent(void (*kernel)(Parameters...), int64_t rows, dim3 grid, dim3 block, size_t shared_bytes,
                             cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  // All kernels are compiled for the same architectures, so only the first one is asked.
  static const bool waits = knows_to_wait(reinterpret_cast<const void*>(kernel));
  config.numAttrs = waits && rows <= kDependentRows ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace tandem::device::cuda
