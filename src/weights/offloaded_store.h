// Weights that live in pinned host memory and come to the device for a visit: where no engine decodes from them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "device/host_memory.h"
#include "memory/host_arena.h"
#include "weights/store.h"

namespace tandem::weights {

// Borrows the host memory. Used from one thread at a time.
class OffloadedStore {
 public:
  // The host's copy, uninitialised: fill host(). EnvironmentError: the host has too little memory.
  OffloadedStore(Layout layout, at::ScalarType dtype, at::Device device, device::HostMemory& host_memory);
  OffloadedStore(const OffloadedStore&) = delete;
  OffloadedStore& operator=(const OffloadedStore&) = delete;

  // The truth, at any time: loaded into, exported from.
  WeightStore& host() { return host_; }
  const WeightStore& host() const { return host_; }
  WeightSpec info() const { return host_.info(); }  // the same wherever the weights are

  // The weights on the device while it lives; then they leave it again, on every path. Visits do not nest.
  class OnDeviceScope {
   public:
    ~OnDeviceScope();
    OnDeviceScope(const OnDeviceScope&) = delete;
    OnDeviceScope& operator=(const OnDeviceScope&) = delete;
    const WeightStore& store() const { return *owner_.on_device_; }

   private:
    friend class OffloadedStore;
    explicit OnDeviceScope(OffloadedStore& owner) : owner_(owner) {}
    OffloadedStore& owner_;
  };
  // BugError: they are there already. EnvironmentError: the device has too little memory, or the copy failed; nothing
  // of it is on the device then.
  OnDeviceScope to_device();

 private:
  const at::Device device_;
  WeightStore host_;
  memory::HostArena pinned_;
  std::byte* const data_;  // in it, host_'s bytes
  at::Tensor bytes_on_device_;
  std::optional<WeightStore> on_device_;
};

}  // namespace tandem::weights
