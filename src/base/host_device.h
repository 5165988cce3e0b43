// Marks a function that both compilers translate: g++ for the host, nvcc for the host and the GPU.
#pragma once

#ifdef __CUDACC__
#define TANDEM_HOST_DEVICE __host__ __device__
#else
#define TANDEM_HOST_DEVICE
#endif
