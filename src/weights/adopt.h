// The second way to start a store: from tensors that are in memory already, by Hugging Face name. load_hf_checkpoint()
// is the first; a store that began without storage takes either, later.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "weights/store.h"

namespace tandem::weights {

using HfTensors = std::map<std::string, at::Tensor>;

// Fills the store with the bits that load_hf_checkpoint() would find in files of the same tensors: float32, bfloat16 or
// float16, converted to the store's dtype; of a NaN that is converted, only that it is one. They may have any strides
// and lie on any device. Each is the whole HF tensor: a slice that is a box of it takes its box.
//
// Takes the handles away: each tensor is dropped when its slice is filled (those of layout().ignored before), so memory
// that nobody else holds is free from then on, and `tensors` ends empty. The store and one Staging buffer are all that
// it takes; where tensors and store lie on one device, the store alone.
//
// A store without storage gets its own. If it is to lie on an accelerator, tensors of accelerators go to the host first
// (move_to_host), so that the device never has to hold the weights twice. For storage that is attached the caller does
// that before taking it; tensors that lie on a device then are copied from there.
//
// UserError: a tensor is missing, belongs to no slice, has another shape or dtype, or has no values (undefined, on the
// meta device, sparse); it is named, and nothing has changed. EnvironmentError: no memory for the storage; all tensors
// are still there, perhaps on the host.
void adopt(HfTensors&& tensors, WeightStore& store);

// Moves what lies on an accelerator to the host, one tensor at a time, each dropped from the device before the next one
// is copied; then gives the memory that LibTorch keeps there for later back to the device.
void move_to_host(HfTensors& tensors);

}  // namespace tandem::weights
