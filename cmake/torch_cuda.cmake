# LibTorch's CUDA half, from the same wheel: what the CUDA module links. Its CUDA libraries are found beside the wheel
# when the module is loaded; building needs only the headers, which the pinned nvidia-cuda-runtime brings.
option(TANDEM_CUDA "Build the CUDA module (src/device/cuda)" OFF)
if(TANDEM_CUDA AND TANDEM_TORCH)
  if(NOT EXISTS "${site_packages}/nvidia/cu13/include/cuda_runtime_api.h")
    message(FATAL_ERROR "no CUDA headers under .venv: run `make cuda` in ${CMAKE_SOURCE_DIR}")
  endif()
  add_library(tandem_cuda_headers INTERFACE)
  target_include_directories(tandem_cuda_headers SYSTEM INTERFACE "${site_packages}/nvidia/cu13/include")
  add_library(tandem_torch_cuda INTERFACE)
  target_link_libraries(tandem_torch_cuda INTERFACE tandem_torch tandem_cuda_headers
    "${TANDEM_TORCH_ROOT}/lib/libtorch_cuda.so" "${TANDEM_TORCH_ROOT}/lib/libc10_cuda.so"
    "${site_packages}/nvidia/cu13/lib/libcudart.so.13")
  # Headers alone: LibTorch's CUDA half has loaded the library, and src/device/cuda/ranks/nccl.cc looks it up there.
  add_library(tandem_nccl_headers INTERFACE)
  target_include_directories(tandem_nccl_headers SYSTEM INTERFACE "${site_packages}/nvidia/nccl/include")
  add_library(tandem_cublas_lt INTERFACE)
  target_link_libraries(tandem_cublas_lt INTERFACE tandem_cuda_headers "${site_packages}/nvidia/cu13/lib/libcublasLt.so.13")
endif()
