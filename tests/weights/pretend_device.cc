#include "tests/weights/pretend_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/check.h"

namespace tandem::weights::pretend_device {
namespace {

struct State {
  int64_t capacity_bytes = 0;
  int64_t held_bytes = 0;
  int64_t peak_live_bytes = 0;
  int64_t num_conversions = 0;
  std::map<void*, int64_t> live;
  std::multimap<int64_t, void*> kept;  // by size
};

State& state() {
  static State state;
  return state;
}

int64_t count_live() {
  int64_t bytes = 0;
  for (const auto& [address, size] : state().live) bytes += size;
  return bytes;
}

void keep(void* address) {
  const auto node = state().live.extract(address);
  state().kept.emplace(node.mapped(), address);
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const auto bytes = std::max<int64_t>(static_cast<int64_t>(size), 1);
    void* address = nullptr;
    if (const auto kept = state().kept.find(bytes); kept != state().kept.end()) {
      address = kept->second;
      state().kept.erase(kept);
    } else {
      if (state().held_bytes + bytes > state().capacity_bytes) {
        throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "the pretend device is full");
      }
      address = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      TANDEM_CHECK(address != MAP_FAILED, "mmap");
      state().held_bytes += bytes;
    }
    state().live.emplace(address, bytes);
    state().peak_live_bytes = std::max(state().peak_live_bytes, count_live());
    return {address, address, &keep, device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &keep; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {
    for (const auto& [bytes, address] : state().kept) {
      munmap(address, static_cast<size_t>(bytes));
      state().held_bytes -= bytes;
    }
    state().kept.clear();
  }
  void recordStream(const c10::DataPtr& /*data*/, c10::Stream /*stream*/) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*index*/) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex /*index*/) override {}
  void resetPeakStats(c10::DeviceIndex /*index*/) override {}
};

Allocator& allocator() {
  static Allocator allocator;
  return allocator;
}

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                 std::optional<at::Device> /*device*/, std::optional<bool> /*pinned*/,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator(), kKeys, dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/, std::optional<at::Device> /*device*/,
                         std::optional<bool> /*pinned*/) {
  return at::detail::empty_strided_generic(size, stride, &allocator(), kKeys, dtype.value_or(at::kFloat));
}

// Returns a view of the same memory on the host.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::for_blob(tensor.data_ptr(), tensor.sizes())
      .strides(tensor.strides())
      .options(at::TensorOptions(tensor.scalar_type()))
      .make_tensor();
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool /*non_blocking*/) {
  at::Tensor source = on_host(from);
  if (to.device() != from.device() && to.scalar_type() != from.scalar_type()) {
    ++state().num_conversions;
    source = source.to(to.scalar_type());
  }
  on_host(to).copy_(source);
  return to;
}

at::Tensor& fill(at::Tensor& tensor, const at::Scalar& value) {
  on_host(tensor).fill_(value);
  return tensor;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("copy_", &copy);
  m.impl("fill_.Scalar", &fill);
}

}  // namespace

void reset(int64_t capacity_bytes) {
  static const bool registered = [] {
    c10::SetAllocator(c10::DeviceType::PrivateUse1, &allocator());
    return true;
  }();
  TANDEM_CHECK(registered && state().live.empty(), "something lives on the pretend device");
  allocator().emptyCache({0, 0});
  state() = {};
  state().capacity_bytes = capacity_bytes;
}

int64_t live_bytes() { return count_live(); }
int64_t held_bytes() { return state().held_bytes; }
int64_t peak_live_bytes() { return state().peak_live_bytes; }
int64_t num_conversions() { return state().num_conversions; }

}  // namespace tandem::weights::pretend_device

namespace c10::impl {
// LibTorch's own devices do the same; the macro needs this namespace.
C10_REGISTER_GUARD_IMPL(PrivateUse1, NoOpDeviceGuardImpl<DeviceType::PrivateUse1>)
}  // namespace c10::impl
