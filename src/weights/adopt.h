// Provides the second way to fill a store: from tensors that are in memory already, by Hugging Face name.
// load_hf_checkpoint() is the first; a store that began without storage takes either, later.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "weights/store.h"

namespace tandem::weights {

using HfTensors = std::map<std::string, at::Tensor>;

// Fills the store with the bits that load_hf_checkpoint() would read from files of the same tensors: float32, bfloat16
// or float16, converted to the store's dtype; a converted NaN stays a NaN, whose bits may differ. The tensors may have
// any strides and lie on any device. Each is the whole HF tensor: a slice that is a box of it takes its box.
//
// Takes the handles away: each tensor is dropped when its slice is filled (those of layout().ignored before), so memory
// without another owner is free from then on, and `tensors` ends empty. Adoption needs the store and one Staging
// buffer; if tensors and store lie on one device, only the store.
//
// A store without storage gets its own. If it is to lie on an accelerator, tensors of accelerators go to the host first
// (move_to_host), so that the device never has to hold the weights twice. For attached storage the caller does that
// before taking it; tensors that lie on a device then are copied from there.
//
// Throws UserError, which names the tensor and leaves everything unchanged, if a tensor is missing, belongs to no
// slice, has another shape or dtype, or has no values (undefined, on the meta device, sparse). Throws EnvironmentError
// if there is no memory for the storage; all tensors are still there, perhaps on the host.
void adopt(HfTensors&& tensors, WeightStore& store);

// Moves tensors from accelerators to the host, one at a time, each dropped from the device before the next one is
// copied; then returns the memory that LibTorch caches there to the device.
void move_to_host(HfTensors& tensors);

}  // namespace tandem::weights
