// A reservation cut into slots of one extent's size, and what is mapped where. Its addresses never change. No torch.
#pragma once

#include <span>
#include <vector>

#include "device/vmm.h"

namespace tandem::memory {

// Slots that lie side by side: [begin, end).
struct SlotRun {
  int64_t begin = 0;
  int64_t end = 0;
};
// The maximal runs of ascending slots.
std::vector<SlotRun> runs_of(std::span<const int64_t> slots);

// Unmaps what is mapped, and frees the addresses, when it ends; what the driver refuses then is logged and left to the
// end of the process. Not thread-safe. Who unmaps has waited for the device.
class AddressRange {
 public:
  // EnvironmentError when the device has no addresses left.
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
    kStale,  // the driver refused to unmap it: nobody uses it, and the next map() or unmap() tries again
  };
  State state(int64_t slot) const { return states_[static_cast<size_t>(slot)]; }
  std::vector<int64_t> slots_in(State state) const;

  // extents[i] at slots[i], ascending; access is opened with one call per run. All or none: false when the device has
  // no memory for page tables, EnvironmentError when it fails otherwise.
  bool map(std::span<const int64_t> slots, std::span<const device::ExtentId> extents);
  // Slots that are not unmapped, ascending; one call per run. EnvironmentError: the runs before it are unmapped.
  void unmap(std::span<const int64_t> slots);
  // The same for undoing: what the driver refuses becomes stale.
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
