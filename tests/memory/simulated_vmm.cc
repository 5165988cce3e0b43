// Implements simulated_vmm.h.
#include "tests/memory/simulated_vmm.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::memory {

using device::ExtentId;

namespace {

uintptr_t number(const std::byte* address) { return reinterpret_cast<uintptr_t>(address); }

}  // namespace

device::DeviceBytes SimulatedVmm::device_bytes() const {
  int64_t taken_bytes = 0;
  for (const auto& extent : created_)
    if (const auto contents = extent.lock()) taken_bytes += std::ssize(*contents);
  return {.free = total_bytes_ - taken_bytes, .total = total_bytes_};
}

device::VmmCounts SimulatedVmm::counts() const {
  return {.num_reservations = std::ssize(reservations_),
          .num_extents = std::ssize(extents_),
          .num_mappings = std::ssize(mappings_)};
}

std::byte* SimulatedVmm::reserve_addresses(int64_t bytes) {
  TANDEM_CHECK(bytes > 0 && bytes % granularity_bytes() == 0, bytes);
  const uintptr_t address = next_address_;
  next_address_ += static_cast<uintptr_t>(bytes);  // ranges are adjacent, so an access beyond the end of one is found
  reservations_[address] = bytes;
  return reinterpret_cast<std::byte*>(address);
}

void SimulatedVmm::free_addresses(std::byte* address, int64_t bytes) {
  TANDEM_CHECK(reservations_.contains(number(address)) && reservations_.at(number(address)) == bytes, bytes);
  for (const auto& [begin, mapping] : mappings_)
    TANDEM_CHECK(begin < number(address) || begin >= number(address) + static_cast<uintptr_t>(bytes), "mapped");
  reservations_.erase(number(address));
}

std::optional<ExtentId> SimulatedVmm::create_extent(int64_t bytes) {
  TANDEM_CHECK(bytes > 0 && bytes % granularity_bytes() == 0, bytes);
  if (bytes > device_bytes().free) return std::nullopt;
  std::erase_if(created_, [](const auto& extent) { return extent.expired(); });
  const ExtentId extent{next_id_++};
  extents_[extent] = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(bytes), std::byte{0xCD});
  created_.push_back(extents_[extent]);
  return extent;
}

void SimulatedVmm::release_extent(ExtentId extent) { TANDEM_CHECK_EQ(extents_.erase(extent), 1U); }

bool SimulatedVmm::map(std::byte* address, ExtentId extent) {
  TANDEM_CHECK(extents_.contains(extent), "no such extent");
  const Contents& contents = extents_.at(extent);
  const int64_t bytes = std::ssize(*contents);
  const uintptr_t begin = number(address), end = begin + static_cast<uintptr_t>(bytes);
  TANDEM_CHECK_EQ(begin % static_cast<uintptr_t>(granularity_bytes()), 0U);
  bool is_reserved = false;
  for (const auto& [at, size] : reservations_)
    is_reserved = is_reserved || (begin >= at && end <= at + static_cast<uintptr_t>(size));
  TANDEM_CHECK(is_reserved, "not in one reservation");
  for (const auto& [at, mapping] : mappings_) {
    TANDEM_CHECK(end <= at || begin >= at + static_cast<uintptr_t>(mapping.bytes), "mapped already");
    TANDEM_CHECK(can_alias_ || mapping.extent != extent, "the extent is mapped elsewhere");
  }
  mappings_[begin] = {.bytes = bytes, .is_open = false, .extent = extent, .contents = contents};
  return true;
}

std::pair<SimulatedVmm::Mappings::iterator, SimulatedVmm::Mappings::iterator> SimulatedVmm::run(std::byte* address,
                                                                                                int64_t bytes) {
  uintptr_t at = number(address);
  const uintptr_t end = at + static_cast<uintptr_t>(bytes);
  const auto first = mappings_.find(at);
  auto last = first;
  for (; last != mappings_.end() && last->first == at && at < end; ++last)
    at += static_cast<uintptr_t>(last->second.bytes);
  TANDEM_CHECK(bytes > 0 && at == end, "not a run of whole mappings");
  return {first, last};
}

void SimulatedVmm::unmap(std::byte* address, int64_t bytes) {
  const auto [first, last] = run(address, bytes);
  mappings_.erase(first, last);
}

bool SimulatedVmm::open_access(std::byte* address, int64_t bytes) {
  const auto [first, last] = run(address, bytes);
  for (auto mapping = first; mapping != last; ++mapping) mapping->second.is_open = true;
  return true;
}

std::byte& SimulatedVmm::at(const std::byte* address) {
  auto mapping = mappings_.upper_bound(number(address));
  TANDEM_CHECK(mapping != mappings_.begin(), "a touch of nothing");
  --mapping;
  const uintptr_t offset = number(address) - mapping->first;
  TANDEM_CHECK(offset < static_cast<uintptr_t>(mapping->second.bytes), "a touch of unmapped addresses");
  TANDEM_CHECK(mapping->second.is_open, "a touch of a mapping that is not open");
  return (*mapping->second.contents)[offset];
}

std::byte* SimulatedHostMemory::allocate(int64_t bytes) {
  std::vector<std::byte> memory(static_cast<size_t>(bytes));
  std::byte* const host = memory.data();
  allocations_[host] = std::move(memory);
  return host;
}

void SimulatedHostMemory::free(std::byte* host, int64_t bytes) {
  TANDEM_CHECK(allocations_.contains(host) && std::ssize(allocations_.at(host)) == bytes, bytes);
  allocations_.erase(host);
}

void SimulatedHostMemory::copy_to_host(std::byte* host, const std::byte* device, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) host[i] = vmm_.at(device + i);
}

void SimulatedHostMemory::copy_to_device(std::byte* device, const std::byte* host, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) vmm_.at(device + i) = host[i];
}

}  // namespace tandem::memory
