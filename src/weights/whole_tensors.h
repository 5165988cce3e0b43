// A model that is spread over tensor ranks, put together for one of them to write: a few MiB at a time, so that no rank
// ever holds a whole tensor.
#pragma once

#include <functional>
#include <vector>

#include "device/communicator.h"
#include "weights/safetensors.h"
#include "weights/store.h"

namespace tandem::weights {

// Rank 0 runs `write` with every HF tensor of the model, whole, in the layout's order; what other ranks have of one is
// asked of them as its bytes are copied out (TensorBytes::copy_out), in any order. The other ranks answer. Returns on
// all of them when `write` has returned. At most 2 kStagingBytes of host memory beside what `write` takes.
//
// `replica`: of the host, the ranks that hold one copy of the model between them, each with its own part as `store`.
// All call this together, with storage that stays as it is until it returns; a store that is whole needs nobody else.
//
// Errors: what `write` throws; on the other ranks an EnvironmentError with the same words. A rank that cannot read its
// weights throws its own error, and `write` ends with an EnvironmentError, as do the other ranks. PeerLost.
void with_whole_tensors(const WeightStore& store, device::Communicator& replica,
                        const std::function<void(std::vector<TensorBytes> tensors)>& write);

}  // namespace tandem::weights
