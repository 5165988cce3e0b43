// The records of a Vmm: which addresses are reserved, which extents exist, and what is mapped. A backend calls
// check_x() before it asks its device for x (it throws BugError if x breaks a rule of the contract) and x-ed() once the
// device has done it. Not thread-safe.
#pragma once

#include <map>

#include "device/vmm.h"

namespace tandem::device {

class MappingTable {
 public:
  MappingTable(int64_t granularity_bytes, bool can_alias)
      : granularity_bytes_(granularity_bytes), can_alias_(can_alias) {}

  void check_bytes(int64_t bytes) const;

  void reserved(std::byte* address, int64_t bytes);
  void check_free(std::byte* address, int64_t bytes) const;
  void freed(std::byte* address) { reservations_.erase(address); }

  ExtentId created(int64_t bytes);
  void check_extent(ExtentId extent) const;  // BugError unless the extent exists and is not released
  void released(ExtentId extent);
  int64_t extent_bytes(ExtentId extent) const { return extents_.at(extent).bytes; }

  void check_map(std::byte* address, ExtentId extent) const;
  void mapped(std::byte* address, ExtentId extent);
  // unmap() and open_access() need whole mappings, side by side.
  void check_mapped(std::byte* address, int64_t bytes) const;
  void unmapped(std::byte* address, int64_t bytes);

  // Returns the bytes of extents that are not released or still mapped.
  int64_t taken_bytes() const { return taken_bytes_; }
  VmmCounts counts() const;

 private:
  struct Extent {
    int64_t bytes = 0;
    int64_t num_mappings = 0;
    bool is_released = false;
  };
  struct Mapping {
    ExtentId extent;
    int64_t bytes = 0;
  };
  void forget_if_unused(std::map<ExtentId, Extent>::iterator extent);

  int64_t granularity_bytes_;
  bool can_alias_;
  int64_t next_id_ = 1, taken_bytes_ = 0, num_released_ = 0;
  std::map<std::byte*, int64_t> reservations_;
  std::map<ExtentId, Extent> extents_;
  std::map<std::byte*, Mapping> mappings_;
};

}  // namespace tandem::device
