#include "device/npu/npu_vmm.h"

#include "base/check.h"

namespace tandem::device {

using npu::AclCalls;
using npu::AclHandle;
using npu::AclResult;
using npu::check_acl;
using npu::CurrentContext;

namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// One page of memory that is mapped at two addresses, if the device allows that.
class TwiceMappedPage {
 public:
  TwiceMappedPage(const AclCalls& acl, int64_t bytes) : acl_(acl), bytes_(static_cast<size_t>(bytes)) {}
  ~TwiceMappedPage() {  // after an error
    try {
      give_back();
    } catch (const EnvironmentError&) {  // the first error is reported
    }
  }
  TwiceMappedPage(const TwiceMappedPage&) = delete;
  TwiceMappedPage& operator=(const TwiceMappedPage&) = delete;

  void map(const npu::AclMemoryProperties& properties) {
    const auto bytes = static_cast<int64_t>(bytes_);
    check_acl(acl_, acl_.aclrtReserveMemAddress(&first_, 2 * bytes_, 0, nullptr, 0), "aclrtReserveMemAddress",
              2 * bytes);
    check_acl(acl_, acl_.aclrtMallocPhysical(&handle_, bytes_, &properties, 0), "aclrtMallocPhysical", bytes);
    check_acl(acl_, acl_.aclrtMapMem(first_, bytes_, 0, handle_, 0), "aclrtMapMem", bytes);
    is_mapped_ = true;
    is_twice_mapped_ = acl_.aclrtMapMem(second(), bytes_, 0, handle_, 0) == npu::kAclSuccess;
  }
  // Returns whether bytes that are written at the first address are read at the second.
  bool shows_the_same_bytes() const {
    if (!is_twice_mapped_) return false;
    std::array<char, 64> written = {}, read = {};
    written.fill('a');
    const AclResult to = acl_.aclrtMemcpy(first_, bytes_, written.data(), written.size(), npu::kAclCopyToDevice);
    const AclResult from = acl_.aclrtMemcpy(read.data(), read.size(), second(), read.size(), npu::kAclCopyToHost);
    return to == npu::kAclSuccess && from == npu::kAclSuccess && read == written;
  }
  void give_back() {
    const auto bytes = static_cast<int64_t>(bytes_);
    if (is_twice_mapped_) check_acl(acl_, acl_.aclrtUnmapMem(second()), "aclrtUnmapMem", bytes);
    is_twice_mapped_ = false;
    if (is_mapped_) check_acl(acl_, acl_.aclrtUnmapMem(first_), "aclrtUnmapMem", bytes);
    is_mapped_ = false;
    if (handle_ != nullptr) check_acl(acl_, acl_.aclrtFreePhysical(handle_), "aclrtFreePhysical", bytes);
    handle_ = nullptr;
    if (first_ != nullptr) check_acl(acl_, acl_.aclrtReleaseMemAddress(first_), "aclrtReleaseMemAddress", 2 * bytes);
    first_ = nullptr;
  }

 private:
  void* second() const { return static_cast<std::byte*>(first_) + bytes_; }

  const AclCalls& acl_;
  size_t bytes_;
  void* first_ = nullptr;
  AclHandle handle_ = nullptr;
  bool is_mapped_ = false, is_twice_mapped_ = false;
};

}  // namespace

NpuVmm::NpuVmm(const AclCalls& acl, int index) : device_(acl, index) {
  const CurrentContext current(device_);
  granularity_bytes_ = kHugePageBytes;
  if (acl.aclrtMemGetAllocationGranularity != nullptr) {
    npu::AclMemoryProperties memory = properties();
    size_t bytes = 0;
    check_acl(acl, acl.aclrtMemGetAllocationGranularity(&memory, npu::kAclRecommendedGranularity, &bytes),
              "aclrtMemGetAllocationGranularity");
    granularity_bytes_ = static_cast<int64_t>(bytes);
  }
  TwiceMappedPage page(acl, granularity_bytes_);
  page.map(properties());
  can_alias_ = page.shows_the_same_bytes();
  page.give_back();
  table_ = std::make_unique<MappingTable>(granularity_bytes_, can_alias_);
}

NpuVmm::~NpuVmm() {
  for (const auto& [extent, memory] : memory_) device_.acl().aclrtFreePhysical(memory.handle);
}

npu::AclMemoryProperties NpuVmm::properties() const {
  return {.location = {.id = static_cast<uint32_t>(device_.index())}};
}

DeviceBytes NpuVmm::device_bytes() const {
  const CurrentContext current(device_);
  size_t free_bytes = 0, total_bytes = 0;
  check_acl(device_.acl(), device_.acl().aclrtGetMemInfo(npu::kAclHbm, &free_bytes, &total_bytes), "aclrtGetMemInfo");
  return {.free = static_cast<int64_t>(free_bytes), .total = static_cast<int64_t>(total_bytes)};
}

VmmCounts NpuVmm::counts() const {
  std::lock_guard lock(mutex_);
  return table_->counts();
}

std::byte* NpuVmm::reserve_addresses(int64_t bytes) {
  std::lock_guard lock(mutex_);
  const CurrentContext current(device_);
  const AclCalls& acl = device_.acl();
  table_->check_bytes(bytes);
  void* address = nullptr;
  const AclResult result = acl.aclrtReserveMemAddress(&address, static_cast<size_t>(bytes), 0, nullptr, 0);
  if (!had_memory(acl, result, "aclrtReserveMemAddress", bytes)) return nullptr;
  auto* const reserved = static_cast<std::byte*>(address);
  table_->reserved(reserved, bytes);
  return reserved;
}

void NpuVmm::free_addresses(std::byte* address, int64_t bytes) {
  std::lock_guard lock(mutex_);
  const CurrentContext current(device_);
  table_->check_free(address, bytes);
  check_acl(device_.acl(), device_.acl().aclrtReleaseMemAddress(address), "aclrtReleaseMemAddress", bytes);
  table_->freed(address);
}

std::optional<ExtentId> NpuVmm::create_extent(int64_t bytes) {
  std::lock_guard lock(mutex_);
  const CurrentContext current(device_);
  const AclCalls& acl = device_.acl();
  table_->check_bytes(bytes);
  const npu::AclMemoryProperties wanted = properties();
  AclHandle handle = nullptr;
  const AclResult result = acl.aclrtMallocPhysical(&handle, static_cast<size_t>(bytes), &wanted, 0);
  if (!had_memory(acl, result, "aclrtMallocPhysical", bytes)) return std::nullopt;
  const ExtentId extent = table_->created(bytes);
  memory_[extent] = {.handle = handle, .bytes = bytes};
  return extent;
}

void NpuVmm::release_extent(ExtentId extent) {
  std::lock_guard lock(mutex_);
  const CurrentContext current(device_);
  table_->check_extent(extent);
  Memory& memory = memory_.at(extent);
  if (memory.num_mappings == 0) {
    check_acl(device_.acl(), device_.acl().aclrtFreePhysical(memory.handle), "aclrtFreePhysical", memory.bytes);
    memory_.erase(extent);
  } else {
    memory.is_released = true;
  }
  table_->released(extent);
}

bool NpuVmm::map(std::byte* address, ExtentId extent) {
  std::lock_guard lock(mutex_);
  table_->check_map(address, extent);
  Memory& memory = memory_.at(extent);
  ++memory.num_mappings;
  mappings_[address] = {.extent = extent, .bytes = memory.bytes};
  table_->mapped(address, extent);
  return true;
}

void NpuVmm::unmap(std::byte* address, int64_t bytes) {
  std::lock_guard lock(mutex_);
  const CurrentContext current(device_);
  table_->check_mapped(address, bytes);
  for (auto next = mappings_.find(address); next != mappings_.end() && next->first < address + bytes;) {
    const auto [at, mapping] = *next;
    unmap_one(at, mapping);
    next = mappings_.upper_bound(at);
  }
}

void NpuVmm::unmap_one(std::byte* address, const Mapping& mapping) {
  const AclCalls& acl = device_.acl();
  if (mapping.is_open) check_acl(acl, acl.aclrtUnmapMem(address), "aclrtUnmapMem", mapping.bytes);
  mappings_.erase(address);
  table_->unmapped(address, mapping.bytes);
  const auto memory = memory_.find(mapping.extent);
  if (--memory->second.num_mappings > 0 || !memory->second.is_released) return;
  check_acl(acl, acl.aclrtFreePhysical(memory->second.handle), "aclrtFreePhysical", mapping.bytes);
  memory_.erase(memory);
}

bool NpuVmm::open_access(std::byte* address, int64_t bytes) {
  std::lock_guard lock(mutex_);
  const CurrentContext current(device_);
  const AclCalls& acl = device_.acl();
  table_->check_mapped(address, bytes);
  for (auto next = mappings_.find(address); next != mappings_.end() && next->first < address + bytes; ++next) {
    Mapping& mapping = next->second;
    if (mapping.is_open) continue;
    const AclHandle handle = memory_.at(mapping.extent).handle;
    // The offset into the memory must be 0, and the size that of the memory: extents are mapped whole.
    const AclResult result = acl.aclrtMapMem(next->first, static_cast<size_t>(mapping.bytes), 0, handle, 0);
    if (!had_memory(acl, result, "aclrtMapMem", mapping.bytes)) return false;
    mapping.is_open = true;
  }
  return true;
}

}  // namespace tandem::device
