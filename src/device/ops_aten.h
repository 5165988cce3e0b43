// Every operation of the contract in plain ATen: the readable reference that other backends are tested against, and the
// first implementation on any device that LibTorch knows (it follows its tensors' device and touches no raw pointer).
#pragma once

#include <memory>

#include "device/ops.h"

namespace tandem::device {

// num_threads: of ATen's loops on the CPU; 0: all cores.
//
// It computes in float32 and rounds once, as the contract asks, but does not promise that a row's result is independent
// of the other rows: ATen chooses its matrix kernels by shape. The exact backends do. Inside a KV block, K and V are
// [G, kBlockTokens, K].
std::unique_ptr<Ops> make_aten_ops(int num_threads);

}  // namespace tandem::device
