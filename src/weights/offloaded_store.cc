#include "weights/offloaded_store.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "base/check.h"
#include "memory/arena_allocator.h"
#include "memory/memory_plan.h"

namespace tandem::weights {

OffloadedStore::OffloadedStore(Layout layout, at::ScalarType dtype, at::Device device, device::HostMemory& host_memory)
    : device_(device),
      host_(WeightStore::without_storage(std::move(layout), dtype)),
      pinned_(host_memory, memory::allocated_bytes(host_.bytes()), "leave --offload-reference out"),
      data_(pinned_.allocate(host_.bytes(), memory::Tag::kReference, "offloaded weights")) {
  host_.attach(data_);
}

OffloadedStore::OnDeviceScope OffloadedStore::to_device() {
  TANDEM_CHECK(!on_device_, "visits do not nest");
  at::Tensor bytes;
  {
    const memory::TagScope reference(memory::Tag::kReference, "weights on a visit");
    bytes = at::empty({host_.bytes()}, at::TensorOptions(at::kByte).device(device_));
  }
  auto* const address = static_cast<std::byte*>(bytes.mutable_data_ptr());
  pinned_.memory().copy_to_device(address, data_, host_.bytes());
  pinned_.memory().synchronize();
  WeightStore store = WeightStore::without_storage(host_.layout(), host_.dtype(), device_);
  store.attach(address);
  store.set_version(host_.version());
  on_device_.emplace(std::move(store));
  bytes_on_device_ = std::move(bytes);
  return OnDeviceScope(*this);
}

OffloadedStore::OnDeviceScope::~OnDeviceScope() {
  owner_.on_device_.reset();
  owner_.bytes_on_device_.reset();
}

}  // namespace tandem::weights
