// Implements HostMemory for an NVIDIA GPU: huge pages registered with the driver by several threads, and two streams,
// one for each direction. This header needs no CUDA. No torch.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "device/host_memory.h"

namespace tandem::device {

class PrimaryContext;

class CudaHostMemory : public HostMemory {
 public:
  // `num_threads` threads register an allocation together: one pins about 2 GiB/s.
  explicit CudaHostMemory(int ordinal = 0, int num_threads = 8);
  ~CudaHostMemory() override;  // unregisters allocations that were not freed
  CudaHostMemory(const CudaHostMemory&) = delete;
  CudaHostMemory& operator=(const CudaHostMemory&) = delete;

  std::byte* allocate(int64_t bytes) override;
  void free(std::byte* host, int64_t bytes) override;
  void copy_to_host(std::byte* host, const std::byte* device, int64_t bytes) override;
  void copy_to_device(std::byte* device, const std::byte* host, int64_t bytes) override;
  void synchronize() override;

 private:
  // Cuts a copy at the ends of registrations: the driver copies at full speed only within one.
  void for_each_piece(const std::byte* host, int64_t bytes,
                      const std::function<void(int64_t offset, int64_t bytes)>& copy) const;

  std::unique_ptr<PrimaryContext> context_;
  int num_threads_;
  void* to_host_stream_ = nullptr;    // CUstream
  void* to_device_stream_ = nullptr;  // CUstream
  std::map<const std::byte*, int64_t> allocations_;
};

}  // namespace tandem::device
