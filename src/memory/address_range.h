// A range of reserved addresses, cut into slots of one extent's size, that knows which extent is mapped at which slot.
// Its addresses never change. No torch.
#pragma once

#include <span>
#include <vector>

#include "device/vmm.h"

namespace tandem::memory {

// A run is the adjacent slots [begin, end).
struct SlotRun {
  int64_t begin = 0;
  int64_t end = 0;
};
// Returns the maximal runs of ascending slots.
std::vector<SlotRun> runs_of(std::span<const int64_t> slots);

// Unmaps its extents and frees its addresses when it is destroyed; a refusal of the driver is logged then and left to
// the end of the process. Not thread-safe. A caller that unmaps has waited for the device.
class AddressRange {
 public:
  // Throws EnvironmentError when the device has no addresses left.
  AddressRange(device::Vmm& vmm, int64_t slot_bytes, int64_t num_slots);
  ~AddressRange();
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return slot_bytes_ * num_slots(); }
  int64_t num_slots() const { return static_cast<int64_t>(states_.size()); }

  enum class State : uint8_t {
    kUnmapped,
    kMapped,
    kStale,  // the driver refused to unmap it: unused, and the next map() or unmap() tries again
  };
  State state(int64_t slot) const { return states_[static_cast<size_t>(slot)]; }
  std::vector<int64_t> slots_in(State state) const;

  // Maps extents[i] at slots[i], which ascend; access is opened with one call per run. It maps all or none: returns
  // false when the device has no memory for page tables, throws EnvironmentError when it fails otherwise.
  bool map(std::span<const int64_t> slots, std::span<const device::ExtentId> extents);
  // Unmaps ascending slots, each mapped or stale, with one call per run. If it throws EnvironmentError, the runs before
  // the failing one are unmapped.
  void unmap(std::span<const int64_t> slots);
  // Does the same to undo a mapping: slots that the driver refuses to unmap become stale.
  void unmap_or_leave_stale(std::span<const int64_t> slots) noexcept;

 private:
  std::byte* address(int64_t slot) const { return data_ + slot * slot_bytes_; }
  void unmap(SlotRun run);

  device::Vmm& vmm_;
  const int64_t slot_bytes_;
  std::vector<State> states_;
  std::byte* data_;
};

}  // namespace tandem::memory
