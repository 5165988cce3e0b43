// Copies the weights of one process's store into another's, from device to device, if one can export its memory to the
// other (device::show_memory). Otherwise they go in pieces (sync.h). Both stores have the same layout and dtype
// (weight_spec), so an offset in one is the same offset in the other.
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

// Returns the IPC handle by which other processes map the store's memory for as long as it lives; empty if they cannot.
std::string show_weights(const WeightStore& store, const device::DeviceSpec& device);

// Returns the checksum of each packed tensor, in the layout's order, after the work queued by now is done.
std::vector<device::Checksum> checksums(const WeightStore& store, const device::DeviceSpec& device);

// A store that is filled from another process's memory: directly, or through a second copy, so that the store is read
// meanwhile. From copy() to finish() it is not whole, and a view of it is a BugError, so that weights which were read
// while the other process wrote never sample.
class ShownWeights {
 public:
  // Maps the memory of the IPC handle; `store`, which has storage, is borrowed. Returns nullopt if this process cannot
  // map it, or if its size differs.
  static std::optional<ShownWeights> map(WeightStore& store, const device::DeviceSpec& device, const std::string& word);

  // Copies all of it into the store, and waits until the copy is done.
  void copy();

  // Takes the memory of a second copy, as much as the store's on its device. Throws EnvironmentError when the device
  // has too little.
  void allocate_second();
  bool has_second() const { return second_.has_value(); }
  // Copies all of it into the second copy, and waits until the copy is done. The store stays as it is. Any thread may
  // call it, while no other calls a function of this object.
  void copy_ahead();

  // Makes the store whole, with this version: that of the second copy if that was filled last, which is copied within
  // the device. `checksums` are those of the source store. Throws EnvironmentError if nothing was copied, or if a
  // tensor differs from the source; the store is then not whole.
  void finish(uint64_t version, const std::vector<device::Checksum>& checksums);

 private:
  ShownWeights(WeightStore& store, device::DeviceSpec device, at::Tensor shown)
      : store_(&store), device_(std::move(device)), shown_(std::move(shown)) {}

  WeightStore* store_;
  device::DeviceSpec device_;
  at::Tensor shown_;                                     // mapped bytes
  std::optional<WeightStore> second_;                    // of which only the storage is used
  std::optional<std::vector<device::Checksum>> copied_;  // set from copy() or copy_ahead() to finish()
  bool is_ahead_ = false;                                // the copy is in the second one
};

}  // namespace tandem::weights
