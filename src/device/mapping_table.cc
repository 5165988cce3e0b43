#include "device/mapping_table.h"

#include <iterator>

#include "base/check.h"

namespace tandem::device {

namespace {

const void* shown(const std::byte* address) { return address; }

}  // namespace

void MappingTable::check_bytes(int64_t bytes) const {
  TANDEM_CHECK(bytes > 0 && bytes % granularity_bytes_ == 0, bytes, "bytes are not a multiple of the granularity",
               granularity_bytes_);
}

void MappingTable::reserved(std::byte* address, int64_t bytes) { reservations_[address] = bytes; }

void MappingTable::check_free(std::byte* address, int64_t bytes) const {
  const auto reservation = reservations_.find(address);
  TANDEM_CHECK(reservation != reservations_.end(), "no reservation begins at", shown(address));
  TANDEM_CHECK_EQ(reservation->second, bytes, "bytes: a reservation is freed whole");
  const auto mapping = mappings_.lower_bound(address);
  TANDEM_CHECK(mapping == mappings_.end() || mapping->first >= address + bytes, "an extent is still mapped at",
               shown(mapping->first), "of the reservation at", shown(address));
}

ExtentId MappingTable::created(int64_t bytes) {
  const ExtentId extent{next_id_++};
  extents_[extent] = {.bytes = bytes};
  taken_bytes_ += bytes;
  return extent;
}

void MappingTable::check_extent(ExtentId extent) const {
  const auto found = extents_.find(extent);
  TANDEM_CHECK(found != extents_.end() && !found->second.is_released, "extent", static_cast<int64_t>(extent),
               "was never created, or is released");
}

void MappingTable::released(ExtentId extent) {
  const auto found = extents_.find(extent);
  found->second.is_released = true;
  ++num_released_;
  forget_if_unused(found);
}

void MappingTable::check_map(std::byte* address, ExtentId extent) const {
  check_extent(extent);
  const Extent& entry = extents_.at(extent);
  TANDEM_CHECK(can_alias_ || entry.num_mappings == 0, "extent", static_cast<int64_t>(extent),
               "is mapped, and this device maps an extent once");
  auto reservation = reservations_.upper_bound(address);
  TANDEM_CHECK(reservation != reservations_.begin(), "no reservation holds", shown(address));
  --reservation;
  TANDEM_CHECK(address + entry.bytes <= reservation->first + reservation->second, entry.bytes, "bytes at",
               shown(address), "do not lie in one reservation");
  TANDEM_CHECK((address - reservation->first) % granularity_bytes_ == 0, shown(address),
               "is not aligned to the granularity", granularity_bytes_);
  auto next = mappings_.lower_bound(address);
  TANDEM_CHECK(next == mappings_.end() || next->first >= address + entry.bytes, "an extent is already mapped at",
               shown(next->first));
  if (next != mappings_.begin()) {
    --next;
    TANDEM_CHECK(next->first + next->second.bytes <= address, "an extent is already mapped at", shown(next->first));
  }
}

void MappingTable::mapped(std::byte* address, ExtentId extent) {
  Extent& entry = extents_.at(extent);
  mappings_[address] = {.extent = extent, .bytes = entry.bytes};
  ++entry.num_mappings;
}

void MappingTable::check_mapped(std::byte* address, int64_t bytes) const {
  check_bytes(bytes);
  std::byte* const end = address + bytes;
  std::byte* at = address;
  for (auto mapping = mappings_.find(address); at < end; ++mapping) {
    TANDEM_CHECK(mapping != mappings_.end() && mapping->first == at, "no mapping begins at", shown(at));
    at += mapping->second.bytes;
  }
  TANDEM_CHECK(at == end, "the mapping that ends at", shown(at), "is not wholly in", bytes, "bytes at", shown(address));
}

void MappingTable::unmapped(std::byte* address, int64_t bytes) {
  for (auto mapping = mappings_.find(address); mapping != mappings_.end() && mapping->first < address + bytes;) {
    const auto extent = extents_.find(mapping->second.extent);
    --extent->second.num_mappings;
    forget_if_unused(extent);
    mapping = mappings_.erase(mapping);
  }
}

VmmCounts MappingTable::counts() const {
  return {.num_reservations = std::ssize(reservations_),
          .num_extents = std::ssize(extents_) - num_released_,
          .num_mappings = std::ssize(mappings_)};
}

void MappingTable::forget_if_unused(std::map<ExtentId, Extent>::iterator extent) {
  if (!extent->second.is_released || extent->second.num_mappings > 0) return;
  taken_bytes_ -= extent->second.bytes;
  --num_released_;
  extents_.erase(extent);
}

}  // namespace tandem::device
