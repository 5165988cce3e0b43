// Implements Vmm for an Ascend NPU, through AscendCL's virtual memory calls. No torch.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "device/mapping_table.h"
#include "device/npu/acl_calls.h"
#include "device/vmm.h"

namespace tandem::device {

// AscendCL gives access with the mapping itself, and unmaps one mapping a call. So map() is only noted down, and
// open_access() asks the device; of a run that cannot be unmapped whole, what was unmapped before the failure stays so.
class NpuVmm : public Vmm {
 public:
  // Asks the device by a write and a read whether one extent may be mapped at several addresses. Throws
  // EnvironmentError where there is no such device, or it cannot map a page. `acl` outlives this object.
  explicit NpuVmm(const npu::AclCalls& acl, int index = 0);
  // Frees the memory of extents that were not released; mappings and reservations stay.
  ~NpuVmm() override;
  NpuVmm(const NpuVmm&) = delete;
  NpuVmm& operator=(const NpuVmm&) = delete;

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
  struct Memory {
    npu::AclHandle handle = nullptr;
    int64_t bytes = 0, num_mappings = 0;
    bool is_released = false;
  };
  struct Mapping {
    ExtentId extent;
    int64_t bytes = 0;
    bool is_open = false;  // whether the device has mapped it
  };
  npu::AclMemoryProperties properties() const;
  void unmap_one(std::byte* address, const Mapping& mapping);

  npu::AclDevice device_;
  int64_t granularity_bytes_ = 0;
  bool can_alias_ = false;
  mutable std::mutex mutex_;
  std::unique_ptr<MappingTable> table_;  // made when the granularity and the answer about aliases are known
  // AscendCL does not say whether a handle may be freed while it is mapped, so it is freed after the last unmapping.
  std::map<ExtentId, Memory> memory_;
  std::map<std::byte*, Mapping> mappings_;
};

}  // namespace tandem::device
