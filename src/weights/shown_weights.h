// The weights of one process's store into another's where the one can show the other its memory: a copy from device to
// device (device::show_memory). Where it cannot, they go in pieces (sync.h). Both stores have the same layout and dtype
// (weight_spec), so a place in the one is the same place in the other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/checksum.h"
#include "device/registry.h"
#include "weights/store.h"

namespace tandem::weights {

// The word by which other processes map the store's memory for as long as it lives; empty: they cannot.
std::string show_weights(const WeightStore& store, const device::DeviceSpec& device);

// Of each packed tensor, in the layout's order, when what was queued by now is done.
std::vector<device::Checksum> checksums(const WeightStore& store, const device::DeviceSpec& device);

// A store that is filled from another process's memory. From copy() to finish() it is not whole, and a view of it is a
// BugError: what was read while the other process wrote never samples.
class ShownWeights {
 public:
  // Maps what the word shows; `store`, which has storage, is borrowed. nullopt: this process cannot map it, or it is of
  // another size.
  static std::optional<ShownWeights> map(WeightStore& store, const device::DeviceSpec& device, const std::string& word);

  // Copies all of it, and waits until it is there.
  void copy();
  // The store is whole, and has this version. `checksums` are those of the store that was copied from.
  // EnvironmentError: nothing was copied, or a tensor is not as it was there.
  void finish(uint64_t version, const std::vector<device::Checksum>& checksums);

 private:
  ShownWeights(WeightStore& store, device::DeviceSpec device, at::Tensor shown)
      : store_(&store), device_(std::move(device)), shown_(std::move(shown)) {}

  WeightStore* store_;
  device::DeviceSpec device_;
  at::Tensor shown_;                                     // bytes
  std::optional<std::vector<device::Checksum>> copied_;  // from copy() to finish()
};

}  // namespace tandem::weights
