// A device that is only bookkeeping: its addresses mean nothing to the CPU, and its extents' bytes lie in vectors. It
// holds its user to every rule of the CUDA driver (BugError). The rules are written down independently of the backends'
// own bookkeeping, so it checks the backends too.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "device/host_memory.h"
#include "device/vmm.h"

namespace tandem::memory {

class SimulatedVmm : public device::Vmm {
 public:
  explicit SimulatedVmm(int64_t total_bytes, bool can_alias = true)
      : total_bytes_(total_bytes), can_alias_(can_alias) {}

  int64_t granularity_bytes() const override { return 4096; }
  bool can_alias() const override { return can_alias_; }
  device::DeviceBytes device_bytes() const override;
  device::VmmCounts counts() const override;
  std::byte* reserve_addresses(int64_t bytes) override;
  void free_addresses(std::byte* address, int64_t bytes) override;
  std::optional<device::ExtentId> create_extent(int64_t bytes) override;
  void release_extent(device::ExtentId extent) override;
  bool map(std::byte* address, device::ExtentId extent) override;
  void unmap(std::byte* address, int64_t bytes) override;
  bool open_access(std::byte* address, int64_t bytes) override;

  // Returns the byte at an address. Throws BugError where a device would fault.
  std::byte& at(const std::byte* address);

 private:
  using Contents = std::shared_ptr<std::vector<std::byte>>;
  struct Mapping {
    int64_t bytes = 0;
    bool is_open = false;
    device::ExtentId extent = {};
    Contents contents;
  };
  using Mappings = std::map<uintptr_t, Mapping>;
  // Returns the mappings of exactly [address, address + bytes).
  std::pair<Mappings::iterator, Mappings::iterator> run(std::byte* address, int64_t bytes);

  int64_t total_bytes_;
  bool can_alias_;
  uintptr_t next_address_ = 0x7000'0000'0000;
  int64_t next_id_ = 1;
  std::map<uintptr_t, int64_t> reservations_;
  std::map<device::ExtentId, Contents> extents_;  // extents that are not released
  std::vector<std::weak_ptr<std::vector<std::byte>>> created_;
  Mappings mappings_;
};

// Copies between the vectors and host memory.
class SimulatedHostMemory : public device::HostMemory {
 public:
  explicit SimulatedHostMemory(SimulatedVmm& vmm) : vmm_(vmm) {}
  std::byte* allocate(int64_t bytes) override;
  void free(std::byte* host, int64_t bytes) override;
  void copy_to_host(std::byte* host, const std::byte* device, int64_t bytes) override;
  void copy_to_device(std::byte* device, const std::byte* host, int64_t bytes) override;
  void synchronize() override {}
  int64_t num_allocations() const { return static_cast<int64_t>(allocations_.size()); }

 private:
  SimulatedVmm& vmm_;
  std::map<std::byte*, std::vector<std::byte>> allocations_;
};

}  // namespace tandem::memory
