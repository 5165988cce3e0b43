// Makes a simulated device with everything on it that the tests of src/memory start from.
#pragma once

#include "memory/extent_pool.h"
#include "memory/ledger.h"
#include "tests/memory/simulated_vmm.h"

namespace tandem::memory {

constexpr int64_t kExtentBytes = 8192;

struct SimulatedDevice {
  explicit SimulatedDevice(int64_t num_extents, bool can_alias = true) : vmm(num_extents * kExtentBytes, can_alias) {}
  SimulatedVmm vmm;
  Ledger ledger{{.event_bytes = 1}};
  ExtentPool pool{vmm, ledger, kExtentBytes};
};

}  // namespace tandem::memory
