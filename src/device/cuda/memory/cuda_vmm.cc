#include "device/cuda/memory/cuda_vmm.h"

#include <type_traits>

#include "base/check.h"
#include "device/cuda/memory/cuda_driver.h"

namespace tandem::device {

namespace {

static_assert(std::is_same_v<CUmemGenericAllocationHandle, unsigned long long>);

CUmemAllocationProp extent_properties(const PrimaryContext& context) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = context.device()};
  // NCCL registers only buffers whose memory could be exported.
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  // Libraries of the network refuse memory that was created without this.
  properties.allocFlags.gpuDirectRDMACapable = static_cast<unsigned char>(
      context.attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0 ? 1 : 0);
  return properties;
}

// Returns false if the device is out of memory. Throws for every other failure.
bool had_memory(CUresult result, const char* call, int64_t bytes) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return false;
  check_driver(result, call, bytes);
  return true;
}

}  // namespace

CudaVmm::CudaVmm(int ordinal) : context_(std::make_unique<PrimaryContext>(ordinal)) {
  TANDEM_ENV_CHECK(context_->attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0, "CUDA device",
                   ordinal, "has no virtual memory management; choose another device, or run on the CPU");
  const CUmemAllocationProp properties = extent_properties(*context_);
  size_t granularity_bytes = 0;
  check_driver(
      driver().cuMemGetAllocationGranularity(&granularity_bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "cuMemGetAllocationGranularity");
  granularity_bytes_ = static_cast<int64_t>(granularity_bytes);
  table_ = std::make_unique<MappingTable>(granularity_bytes_, can_alias());
}

CudaVmm::~CudaVmm() {
  for (const auto& [extent, handle] : handles_) driver().cuMemRelease(handle);
}

DeviceBytes CudaVmm::device_bytes() const {
  const CurrentContext current(*context_);
  size_t free_bytes = 0, total_bytes = 0;
  check_driver(driver().cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo");
  return {.free = static_cast<int64_t>(free_bytes), .total = static_cast<int64_t>(total_bytes)};
}

VmmCounts CudaVmm::counts() const {
  std::lock_guard lock(mutex_);
  return table_->counts();
}

std::byte* CudaVmm::reserve_addresses(int64_t bytes) {
  std::lock_guard lock(mutex_);
  const CurrentContext current(*context_);
  table_->check_bytes(bytes);
  CUdeviceptr address = 0;
  if (!had_memory(driver().cuMemAddressReserve(&address, static_cast<size_t>(bytes), 0, 0, 0), "cuMemAddressReserve",
                  bytes))
    return nullptr;
  auto* const reserved = reinterpret_cast<std::byte*>(address);
  table_->reserved(reserved, bytes);
  return reserved;
}

void CudaVmm::free_addresses(std::byte* address, int64_t bytes) {
  std::lock_guard lock(mutex_);
  const CurrentContext current(*context_);
  table_->check_free(address, bytes);
  check_driver(driver().cuMemAddressFree(pointer(address), static_cast<size_t>(bytes)), "cuMemAddressFree", bytes);
  table_->freed(address);
}

std::optional<ExtentId> CudaVmm::create_extent(int64_t bytes) {
  std::lock_guard lock(mutex_);
  const CurrentContext current(*context_);
  table_->check_bytes(bytes);
  const CUmemAllocationProp properties = extent_properties(*context_);
  CUmemGenericAllocationHandle handle = 0;
  if (!had_memory(driver().cuMemCreate(&handle, static_cast<size_t>(bytes), &properties, 0), "cuMemCreate", bytes))
    return std::nullopt;
  const ExtentId extent = table_->created(bytes);
  handles_[extent] = handle;
  return extent;
}

void CudaVmm::release_extent(ExtentId extent) {
  std::lock_guard lock(mutex_);
  const CurrentContext current(*context_);
  table_->check_extent(extent);
  check_driver(driver().cuMemRelease(handles_.at(extent)), "cuMemRelease", table_->extent_bytes(extent));
  handles_.erase(extent);
  table_->released(extent);
}

bool CudaVmm::map(std::byte* address, ExtentId extent) {
  std::lock_guard lock(mutex_);
  const CurrentContext current(*context_);
  table_->check_map(address, extent);
  const int64_t bytes = table_->extent_bytes(extent);
  // The offset into an extent must be 0: extents are mapped whole.
  if (!had_memory(driver().cuMemMap(pointer(address), static_cast<size_t>(bytes), 0, handles_.at(extent), 0),
                  "cuMemMap", bytes))
    return false;
  table_->mapped(address, extent);
  return true;
}

void CudaVmm::unmap(std::byte* address, int64_t bytes) {
  std::lock_guard lock(mutex_);
  const CurrentContext current(*context_);
  table_->check_mapped(address, bytes);
  check_driver(driver().cuMemUnmap(pointer(address), static_cast<size_t>(bytes)), "cuMemUnmap", bytes);
  table_->unmapped(address, bytes);
}

bool CudaVmm::open_access(std::byte* address, int64_t bytes) {
  std::lock_guard lock(mutex_);
  const CurrentContext current(*context_);
  table_->check_mapped(address, bytes);
  CUmemAccessDesc description{};
  description.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = context_->device()};
  description.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return had_memory(driver().cuMemSetAccess(pointer(address), static_cast<size_t>(bytes), &description, 1),
                    "cuMemSetAccess", bytes);
}

}  // namespace tandem::device
