// Implements Vmm for an NVIDIA GPU, through the driver's virtual memory calls. Memory lies on the device, and may be
// registered for NCCL and for RDMA where the device can. This header needs no CUDA. No torch.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "device/mapping_table.h"
#include "device/vmm.h"

namespace tandem::device {

class PrimaryContext;

class CudaVmm : public Vmm {
 public:
  // Throws EnvironmentError where there is no such device, or it has no virtual memory management.
  explicit CudaVmm(int ordinal = 0);
  // Releases extents that were not released; mappings and reservations stay.
  ~CudaVmm() override;
  CudaVmm(const CudaVmm&) = delete;
  CudaVmm& operator=(const CudaVmm&) = delete;

  int64_t granularity_bytes() const override { return granularity_bytes_; }
  bool can_alias() const override { return true; }
  DeviceBytes device_bytes() const override;
  VmmCounts counts() const override;

  std::byte* reserve_addresses(int64_t bytes) override;
  void free_addresses(std::byte* address, int64_t bytes) override;
  std::optional<ExtentId> create_extent(int64_t bytes) override;
  void release_extent(ExtentId extent) override;
  bool map(std::byte* address, ExtentId extent) override;
  void unmap(std::byte* address, int64_t bytes) override;
  bool open_access(std::byte* address, int64_t bytes) override;

 private:
  using Handle = unsigned long long;  // CUmemGenericAllocationHandle
  std::unique_ptr<PrimaryContext> context_;
  int64_t granularity_bytes_ = 0;
  mutable std::mutex mutex_;
  std::unique_ptr<MappingTable> table_;  // made when the granularity is known
  std::map<ExtentId, Handle> handles_;   // handles of extents that are not released
};

}  // namespace tandem::device
