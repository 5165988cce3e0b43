// The simulated device keeps the contract that real ones keep, so proofs on it hold for them.
#include "tests/memory/simulated_vmm.h"

#include "tests/device/memory/vmm_conformance.h"

namespace tandem::device {

namespace {

VmmBackend simulated_backend(const std::string& name, bool can_alias) {
  return {.name = name,
          .make_vmm = [can_alias] { return std::make_unique<memory::SimulatedVmm>(int64_t{1} << 20, can_alias); },
          .make_host_memory =
              [](Vmm& vmm) {
                return std::make_unique<memory::SimulatedHostMemory>(dynamic_cast<memory::SimulatedVmm&>(vmm));
              },
          .extent_granules = 2};
}

INSTANTIATE_TEST_SUITE_P(Simulated, VmmConformance,
                         testing::Values(simulated_backend("Aliasing", true), simulated_backend("MappedOnce", false)),
                         vmm_backend_name);

}  // namespace
}  // namespace tandem::device
