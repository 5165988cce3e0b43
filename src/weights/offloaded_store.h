// Weights that live in pinned host memory and come to the device only while they are used. For models that no engine
// decodes with.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "device/host_memory.h"
#include "memory/host_arena.h"
#include "weights/store.h"

namespace tandem::weights {

// Borrows the host memory. It is used from one thread at a time.
class OffloadedStore {
 public:
  // Allocates the host's copy, uninitialised: the caller fills host(). Throws EnvironmentError if the host has too
  // little memory.
  OffloadedStore(Layout layout, at::ScalarType dtype, at::Device device, device::HostMemory& host_memory);
  OffloadedStore(const OffloadedStore&) = delete;
  OffloadedStore& operator=(const OffloadedStore&) = delete;

  // The host's copy is always the current one: weights are loaded into it and exported from it.
  WeightStore& host() { return host_; }
  const WeightStore& host() const { return host_; }
  WeightSpec info() const { return host_.info(); }  // same wherever the weights are

  // Keeps the weights on the device for as long as it lives; they leave it at its end, on every path. Scopes do not
  // nest.
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
  // Throws BugError if they are there already, EnvironmentError if the device has too little memory or the copy failed;
  // no part of them is on the device then.
  OnDeviceScope to_device();

 private:
  const at::Device device_;
  WeightStore host_;
  memory::HostArena pinned_;
  std::byte* const data_;  // host_'s bytes, within the host memory
  at::Tensor bytes_on_device_;
  std::optional<WeightStore> on_device_;
};

}  // namespace tandem::weights
