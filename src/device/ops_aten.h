// Implements every operation of the contract in plain ATen. It is the readable reference that other backends are tested
// against, and the first implementation on any device that LibTorch knows: it follows its tensors' device and touches
// no raw pointer of theirs.
#pragma once

#include <memory>
#include <string>

#include "device/ops.h"
#include "device/ops_plan.h"

namespace tandem::device {

// It computes in float32 and rounds once, as the contract asks. Inside a KV block, K and V are [G, kBlockTokens, K].
//
// A forward row is made independent of its batch without knowing the library's kernels. Operations that the library may
// cut by shape (matrix products, and the sums next to them) are only ever called at one shape, with rows padded to it;
// every other sum is a chain of element-wise additions of halves. On a GPU that is exact as far as equal calls treat
// their rows alike, which tests/device checks. On the CPU it is not promised: ATen's element-wise loops compute the
// last few elements of a range by another formula of exp() than the others.

// Makes the operations of the CPU. num_threads counts threads of ATen's loops; 0 means all cores.
std::unique_ptr<Ops> make_aten_ops(int num_threads);
// Makes the operations of a device whose ATen kernels are loaded. num_threads counts threads of ATen's loops on
// the host; 0 means all cores.
// `name` is what name() returns.
std::unique_ptr<Ops> make_aten_ops(at::Device device, const std::string& name, int num_threads,
                                   const AtenCallShape& call = {});

}  // namespace tandem::device
