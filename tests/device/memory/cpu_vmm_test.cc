// Tests of the CPU's virtual memory: the conformance tests of every Vmm, and the origin of its bytes.
#include "device/cpu/cpu_vmm.h"

#include <cstdio>
#include <cstring>

#include "device/cpu/cpu_host_memory.h"
#include "tests/device/memory/vmm_conformance.h"

namespace tandem::device {

namespace {

constexpr int64_t kTotalBytes = int64_t{64} << 20;

VmmBackend cpu_backend(const std::string& name, bool can_alias) {
  return {.name = name,
          .make_vmm = [can_alias] { return std::make_unique<CpuVmm>(kTotalBytes, can_alias); },
          .make_host_memory = [](Vmm&) { return std::make_unique<CpuHostMemory>(); },
          .faults_end_process = true};
}

INSTANTIATE_TEST_SUITE_P(Cpu, VmmConformance,
                         testing::Values(cpu_backend("Aliasing", true), cpu_backend("MappedOnce", false)),
                         vmm_backend_name);

// Returns the pages of shared memory (memfd is part of it) that this process has resident, as the kernel counts them.
int64_t shared_pages() {
  int64_t size = 0, resident = 0, shared = 0;
  FILE* const file = ::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld %ld %ld", &size, &resident, &shared) != 3) return -1;
  std::fclose(file);
  return shared;
}

TEST(CpuVmm, BytesComeFromTheSystemAndGoBack) {
  CpuVmm vmm(kTotalBytes);
  const int64_t bytes = int64_t{32} << 20;
  const ExtentId extent = vmm.create_extent(bytes).value();
  std::byte* const address = vmm.reserve_addresses(bytes);
  ASSERT_TRUE(vmm.map(address, extent) && vmm.open_access(address, bytes));
  std::memset(address, 1, static_cast<size_t>(bytes));
  const int64_t mapped_pages = shared_pages();
  vmm.unmap(address, bytes);
  EXPECT_GE(mapped_pages - shared_pages(), bytes / vmm.granularity_bytes() * 9 / 10);
  vmm.release_extent(extent);
  vmm.free_addresses(address, bytes);
}

TEST(CpuHostMemory, FreeIsOfWhatWasAllocated) {
  CpuHostMemory memory;
  std::byte* const host = memory.allocate(4096);
  ASSERT_NE(host, nullptr);
  EXPECT_ANY_THROW(memory.free(host, 8192));
  EXPECT_ANY_THROW(memory.free(host + 1, 4096));
  memory.free(host, 4096);
  EXPECT_ANY_THROW(memory.free(host, 4096));
  EXPECT_EQ(memory.allocate(int64_t{1} << 60), nullptr) << "more than any host has";
}

}  // namespace
}  // namespace tandem::device
