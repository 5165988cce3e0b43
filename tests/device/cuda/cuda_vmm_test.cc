// Tests of the virtual memory of an NVIDIA GPU: the conformance tests of every Vmm, and copies at the edges of
// registrations.
#include "device/cuda/memory/cuda_vmm.h"

#include "device/cuda/memory/cuda_host_memory.h"
#include "tests/device/memory/vmm_conformance.h"

namespace tandem::device {

namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, VmmConformance,
                         testing::Values(VmmBackend{
                             .name = "Device0",
                             .make_vmm = [] { return std::make_unique<CudaVmm>(); },
                             .make_host_memory = [](Vmm&) { return std::make_unique<CudaHostMemory>(); },
                         }),
                         vmm_backend_name);

TEST(CudaHostMemory, CopiesCrossTheEdgesOfRegistrations) {
  CudaVmm vmm;
  CudaHostMemory memory;
  const int64_t bytes = int64_t{512} << 20;  // size of two registrations
  std::byte* const host = memory.allocate(2 * bytes);
  ASSERT_NE(host, nullptr);
  std::byte* const device = vmm.reserve_addresses(bytes);
  const ExtentId extent = vmm.create_extent(bytes).value();
  ASSERT_TRUE(vmm.map(device, extent) && vmm.open_access(device, bytes));
  for (int64_t i = 0; i < bytes; i += 4093) host[12345 + i] = static_cast<std::byte>(i);
  memory.copy_to_device(device, host + 12345, bytes);
  memory.synchronize();
  memory.copy_to_host(host + bytes - 1, device, bytes);
  memory.synchronize();
  int64_t num_wrong = 0;
  for (int64_t i = 0; i < bytes; i += 4093) num_wrong += host[bytes - 1 + i] != static_cast<std::byte>(i) ? 1 : 0;
  EXPECT_EQ(num_wrong, 0);
  vmm.unmap(device, bytes);
  vmm.release_extent(extent);
  vmm.free_addresses(device, bytes);
  memory.free(host, 2 * bytes);
}

}  // namespace
}  // namespace tandem::device
