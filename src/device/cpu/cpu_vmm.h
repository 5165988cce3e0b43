// The CPU as a device with virtual memory: an extent is a memfd, a reservation is PROT_NONE, and a mapping is the memfd
// over it, so that one extent shows at several addresses. An extent takes its bytes when it is created and gives them
// back with its last mapping. No torch.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "device/mapping_table.h"
#include "device/vmm.h"

namespace tandem::device {

// Returns the bytes that the host could give without swapping (MemAvailable).
int64_t available_host_bytes();

class CpuVmm : public Vmm {
 public:
  // The device has `total_bytes`, or with 0 the bytes that the host can give at this moment. `can_alias` = false
  // imitates a device that maps an extent only once.
  explicit CpuVmm(int64_t total_bytes = 0, bool can_alias = true);
  // Extents that were not released are closed; mappings and reservations stay.
  ~CpuVmm() override;
  CpuVmm(const CpuVmm&) = delete;
  CpuVmm& operator=(const CpuVmm&) = delete;

  int64_t granularity_bytes() const override { return granularity_bytes_; }
  bool can_alias() const override { return can_alias_; }
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
  int64_t granularity_bytes_, total_bytes_;
  bool can_alias_;
  mutable std::mutex mutex_;
  MappingTable table_;
  std::map<ExtentId, int> descriptors_;  // memfds of extents that are not released
};

}  // namespace tandem::device
