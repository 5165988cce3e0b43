#include "device/npu/npu_host_memory.h"

#include "base/check.h"

namespace tandem::device {

using npu::AclCalls;
using npu::AclResult;
using npu::check_acl;
using npu::CurrentContext;

NpuHostMemory::NpuHostMemory(const AclCalls& acl, int index) : device_(acl, index) {
  const CurrentContext current(device_);
  check_acl(acl, acl.aclrtCreateStream(&to_host_stream_), "aclrtCreateStream");
  if (const AclResult result = acl.aclrtCreateStream(&to_device_stream_); result != npu::kAclSuccess) {
    acl.aclrtDestroyStream(to_host_stream_);
    check_acl(acl, result, "aclrtCreateStream");
  }
}

NpuHostMemory::~NpuHostMemory() {
  const AclCalls& acl = device_.acl();
  if (acl.aclrtSetCurrentContext(device_.context()) != npu::kAclSuccess) return;  // CANN has shut down
  for (const npu::AclStream stream : {to_host_stream_, to_device_stream_}) {
    acl.aclrtSynchronizeStream(stream);
    acl.aclrtDestroyStream(stream);
  }
  for (const auto& [host, bytes] : allocations_) acl.aclrtFreeHost(const_cast<std::byte*>(host));
}

std::byte* NpuHostMemory::allocate(int64_t bytes) {
  TANDEM_CHECK(bytes > 0, bytes);
  const CurrentContext current(device_);
  const AclCalls& acl = device_.acl();
  void* address = nullptr;
  const AclResult result = acl.aclrtMallocHost(&address, static_cast<size_t>(bytes));
  if (!had_memory(acl, result, "aclrtMallocHost", bytes)) return nullptr;
  auto* const host = static_cast<std::byte*>(address);
  allocations_[host] = bytes;
  return host;
}

void NpuHostMemory::free(std::byte* host, int64_t bytes) {
  const auto allocation = allocations_.find(host);
  TANDEM_CHECK(allocation != allocations_.end() && allocation->second == bytes, bytes,
               "bytes that were not allocated so");
  const CurrentContext current(device_);
  check_acl(device_.acl(), device_.acl().aclrtFreeHost(host), "aclrtFreeHost", bytes);
  allocations_.erase(allocation);
}

void NpuHostMemory::check_within_an_allocation(const std::byte* host, int64_t bytes) const {
  auto allocation = allocations_.upper_bound(host);
  TANDEM_CHECK(allocation != allocations_.begin(), "host memory that was not allocated here");
  --allocation;
  TANDEM_CHECK(host + bytes <= allocation->first + allocation->second, bytes, "bytes reach beyond their allocation");
}

void NpuHostMemory::copy(void* to, const void* from, int64_t bytes, int32_t kind, npu::AclStream stream) {
  const CurrentContext current(device_);
  const auto count = static_cast<size_t>(bytes);
  check_acl(device_.acl(), device_.acl().aclrtMemcpyAsync(to, count, from, count, kind, stream), "aclrtMemcpyAsync",
            bytes);
}

void NpuHostMemory::copy_to_host(std::byte* host, const std::byte* device, int64_t bytes) {
  check_within_an_allocation(host, bytes);
  copy(host, device, bytes, npu::kAclCopyToHost, to_host_stream_);
}

void NpuHostMemory::copy_to_device(std::byte* device, const std::byte* host, int64_t bytes) {
  check_within_an_allocation(host, bytes);
  copy(device, host, bytes, npu::kAclCopyToDevice, to_device_stream_);
}

void NpuHostMemory::synchronize() {
  const CurrentContext current(device_);
  const AclCalls& acl = device_.acl();
  check_acl(acl, acl.aclrtSynchronizeStream(to_host_stream_), "aclrtSynchronizeStream");
  check_acl(acl, acl.aclrtSynchronizeStream(to_device_stream_), "aclrtSynchronizeStream");
}

}  // namespace tandem::device
