// Tests that every Vmm must pass, whatever its device. A backend's test file instantiates them:
//   INSTANTIATE_TEST_SUITE_P(Cpu, VmmConformance, testing::Values(VmmBackend{...}), vmm_backend_name);
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/host_memory.h"
#include "device/vmm.h"

namespace tandem::device {

struct VmmBackend {
  std::string name;
  std::function<std::unique_ptr<Vmm>()> make_vmm;
  // Makes memory that reads and writes the memory that the Vmm maps.
  std::function<std::unique_ptr<HostMemory>(Vmm&)> make_host_memory;
  // One extent of the tests has so many granules.
  int64_t extent_granules = 4;
  // If set, a touch of unmapped addresses ends the process; otherwise the copy throws.
  bool faults_end_process = false;
};

inline std::string vmm_backend_name(const testing::TestParamInfo<VmmBackend>& info) { return info.param.name; }

class VmmConformance : public testing::TestWithParam<VmmBackend> {
 protected:
  void SetUp() override;
  void TearDown() override;  // checks that nothing has leaked: extents, mappings, addresses, bytes

  void write(std::byte* device, int64_t bytes, uint8_t value);
  // Returns the one value that all bytes have; -1 where they differ.
  int read(const std::byte* device, int64_t bytes);
  // These are reserved, created, mapped and open; they are freed at the end of the test unless taken down before.
  std::byte* reserve(int64_t num_extents);
  ExtentId create();
  void map_open(std::byte* address, ExtentId extent);
  void expect_untouchable(std::byte* address);

  std::unique_ptr<Vmm> vmm_;
  std::unique_ptr<HostMemory> host_memory_;
  std::byte* host_ = nullptr;
  int64_t extent_bytes_ = 0, free_bytes_ = 0;
};

}  // namespace tandem::device
