// The interface between the two libraries of the NPU module. libtandem_npu.so answers where nothing is installed;
// libtandem_npu_torch.so, which lies beside it, needs Python and torch_npu, and is opened when operations are made. It
// exports one function, kTorchHalfEntry, which returns a TorchHalf. Both are built together.
#pragma once

#include <memory>
#include <string>

#include "device/allocator_hook.h"
#include "device/ops.h"

namespace tandem::device {

struct TorchHalf {
  // Starts torch_npu, once a process, and makes the operations of device `index`. num_threads counts threads on the
  // host; 0 means all cores. `soc_and_cann` is for the operations' name. Throws EnvironmentError, one line,
  // where Python, torch or torch_npu does not start, or where an operator does not compute what it should.
  // `rung` is one of npu::kRungs.
  std::unique_ptr<Ops> (*make_ops)(int index, int num_threads, const std::string& soc_and_cann,
                                   const std::string& rung);
  // Returns the version of torch_npu for which this library was built: it starts no other.
  const char* torch_npu;
  // See MemoryDriver's members of these names.
  void (*set_tensor_source)(AllocatorHook* source);
  void (*synchronize)();
  void (*release_unused)();
};

using TorchHalfEntry = const TorchHalf* (*)();
constexpr const char* kTorchHalfEntry = "tandem_npu_torch_half";

}  // namespace tandem::device
