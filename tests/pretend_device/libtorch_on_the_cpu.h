// LibTorch's operations of the CPU in the place of an NPU's: what a run on an NPU is compared with.
#pragma once

#include <cstdint>
#include <memory>

#include "device/cpu/cpu_allocator_hook.h"
#include "device/cpu/cpu_host_memory.h"
#include "device/cpu/cpu_vmm.h"
#include "device/npu/footprint.h"
#include "device/ops_aten.h"
#include "device/registry.h"

namespace tandem::pretend_device {

// LibTorch's operations on the CPU in place of an NPU's, as long as this lives. The CPU converts factors of bfloat16
// before it multiplies, which gives the same bits.
class LibTorchOnTheCpu {
 public:
  // The device has so many bytes.
  explicit LibTorchOnTheCpu(int64_t bytes)
      : replaced_({.make_ops = operations,
                   .bytes = device::DeviceBytes{.free = bytes, .total = bytes},
                   .open_memory = memory}) {}

 private:
  static std::unique_ptr<device::Ops> operations() {
    device::AtenCallShape call = device::npu::kCallShape;
    call.multiplies_bfloat16 = false;
    return device::make_aten_ops(at::kCPU, "aten", 1, call);
  }
  static device::MemoryDriver memory() {
    device::MemoryDriver driver;
    driver.vmm = std::make_unique<device::CpuVmm>();
    driver.make_host = [] { return std::make_unique<device::CpuHostMemory>(); };
    driver.set_tensor_source = device::set_cpu_tensor_source;
    driver.used_bytes = [](int64_t vmm_bytes) { return vmm_bytes; };
    driver.synchronize = [] {};
    return driver;
  }

  device::ScopedFakeBackend replaced_;
};

}  // namespace tandem::pretend_device
