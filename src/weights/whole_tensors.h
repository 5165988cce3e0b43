// Assembles the whole tensors of a model that is spread over tensor ranks, for one of them to write: a few MiB at a
// time, so that no rank ever holds a whole tensor.
#pragma once

#include <functional>
#include <vector>

#include "device/communicator.h"
#include "weights/safetensors.h"
#include "weights/store.h"

namespace tandem::weights {

// Rank 0 runs `write` with every HF tensor of the model, whole, in the layout's order; other ranks are asked for their
// parts of a tensor as its bytes are copied out (TensorBytes::copy_out), in any order. The other ranks answer. Returns
// on all of them when `write` has returned. Takes at most 2 kStagingBytes of host memory in addition to what `write`
// takes.
//
// `replica` holds the tensor-parallel group, on the host: ranks that share one copy of the model, each with its own
// part as `store`. All call this together, with storage that stays as it is until it returns; a store that is whole
// needs no other rank.
//
// Rank 0 throws what `write` throws; the other ranks throw an EnvironmentError with the same words. A rank that cannot
// read its weights throws its own error, and `write` ends with an EnvironmentError, as do the other ranks. PeerLost is
// possible on all.
void with_whole_tensors(const WeightStore& store, device::Communicator& replica,
                        const std::function<void(std::vector<TensorBytes> tensors)>& write);

}  // namespace tandem::weights
