#include "memory/address_range.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"

namespace tandem::memory {

std::vector<SlotRun> runs_of(std::span<const int64_t> slots) {
  std::vector<SlotRun> runs;
  for (const int64_t slot : slots) {
    if (runs.empty() || runs.back().end != slot) runs.push_back({slot, slot});
    runs.back().end = slot + 1;
  }
  return runs;
}

AddressRange::AddressRange(device::Vmm& vmm, int64_t slot_bytes, int64_t num_slots)
    : vmm_(vmm),
      slot_bytes_(slot_bytes),
      states_(static_cast<size_t>(num_slots), State::kUnmapped),
      data_(vmm.reserve_addresses(slot_bytes * num_slots)) {
  TANDEM_ENV_CHECK(data_ != nullptr, "no room for", slot_bytes * num_slots,
                   "bytes of addresses; raise the limit of virtual memory (ulimit -v)");
}

AddressRange::~AddressRange() {
  unmap_or_leave_stale(slots_in(State::kMapped));
  unmap_or_leave_stale(slots_in(State::kStale));  // tries those refused just now once more
  try {
    if (slots_in(State::kStale).empty()) vmm_.free_addresses(data_, bytes());
  } catch (const EnvironmentError& error) {
    base::log_error("addresses were not given back: {}", error.what());
  }
}

std::vector<int64_t> AddressRange::slots_in(State state) const {
  std::vector<int64_t> slots;
  for (int64_t slot = 0; slot < num_slots(); ++slot)
    if (states_[static_cast<size_t>(slot)] == state) slots.push_back(slot);
  return slots;
}

bool AddressRange::map(std::span<const int64_t> slots, std::span<const device::ExtentId> extents) {
  TANDEM_CHECK_EQ(slots.size(), extents.size());
  for (const int64_t slot : slots) {
    TANDEM_CHECK(state(slot) != State::kMapped, "slot", slot);
    if (state(slot) == State::kStale) unmap(SlotRun{slot, slot + 1});
  }
  size_t num_mapped = 0;
  bool had_memory = true;
  const auto undo = [&] { unmap_or_leave_stale(slots.first(num_mapped)); };
  try {
    for (; had_memory && num_mapped < slots.size(); num_mapped += had_memory ? 1 : 0) {
      had_memory = vmm_.map(address(slots[num_mapped]), extents[num_mapped]);
      if (had_memory) states_[static_cast<size_t>(slots[num_mapped])] = State::kMapped;
    }
    if (had_memory)
      for (const SlotRun run : runs_of(slots))
        had_memory = had_memory && vmm_.open_access(address(run.begin), (run.end - run.begin) * slot_bytes_);
  } catch (const EnvironmentError&) {
    undo();
    throw;
  }
  if (!had_memory) undo();
  return had_memory;
}

void AddressRange::unmap(std::span<const int64_t> slots) {
  for (const SlotRun run : runs_of(slots)) unmap(run);
}

void AddressRange::unmap_or_leave_stale(std::span<const int64_t> slots) noexcept {
  for (const SlotRun run : runs_of(slots)) {
    try {
      unmap(run);
    } catch (const EnvironmentError& error) {
      base::log_error("memory stays mapped: {}", error.what());
      std::fill(states_.begin() + run.begin, states_.begin() + run.end, State::kStale);
    }
  }
}

void AddressRange::unmap(SlotRun run) {
  vmm_.unmap(address(run.begin), (run.end - run.begin) * slot_bytes_);
  std::fill(states_.begin() + run.begin, states_.begin() + run.end, State::kUnmapped);
}

}  // namespace tandem::memory
