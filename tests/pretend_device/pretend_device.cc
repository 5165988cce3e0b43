#include "tests/pretend_device/pretend_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

#include "base/check.h"
#include "tests/pretend_device/device_address.h"

namespace tandem::pretend_device {
namespace {

struct State {
  int64_t capacity_bytes = kCapacityBytes;
  int64_t live_bytes = 0;
  int64_t held_bytes = 0;
  int64_t peak_live_bytes = 0;
  int64_t num_conversions = 0;
  std::map<void*, int64_t> live;
  std::multimap<int64_t, void*> kept;  // by size
};

// Lasts as long as the process: tensors may be freed after all destructors.
State& state() {
  static State& state = *new State;
  return state;
}
std::mutex& mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

std::atomic<device::AllocatorHook*> current_source = nullptr;
thread_local c10::DeviceIndex current_device = 0;

void keep(void* address) {
  device::AllocatorHook* const source = current_source.load(std::memory_order_acquire);
  if (source != nullptr && source->free(static_cast<std::byte*>(address))) return;
  const std::lock_guard lock(mutex());
  const auto node = state().live.extract(address);
  state().live_bytes -= node.mapped();
  state().kept.emplace(node.mapped(), address);
}

void* allocate_own(int64_t bytes) {
  const std::lock_guard lock(mutex());
  void* address = nullptr;
  if (const auto kept = state().kept.find(bytes); kept != state().kept.end()) {
    address = kept->second;
    state().kept.erase(kept);
  } else {
    if (state().held_bytes + bytes > state().capacity_bytes) {
      throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "the pretend device is full");
    }
    void* const host =
        mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TANDEM_CHECK(host != MAP_FAILED, "mmap");
    address = on_device(host);
    state().held_bytes += bytes;
  }
  state().live.emplace(address, bytes);
  state().live_bytes += bytes;
  state().peak_live_bytes = std::max(state().peak_live_bytes, state().live_bytes);
  return address;
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const auto bytes = static_cast<int64_t>(size);
    device::AllocatorHook* const source = current_source.load(std::memory_order_acquire);
    void* address = source == nullptr || bytes == 0 ? nullptr : source->allocate(bytes);
    if (address == nullptr) address = allocate_own(std::max<int64_t>(bytes, 1));
    return {address, address, &keep, device(current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &keep; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(on_host(to), on_host(from), bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override { release_unused(); }
  void recordStream(const c10::DataPtr& /*data*/, c10::Stream /*stream*/) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*index*/) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex /*index*/) override {}
  void resetPeakStats(c10::DeviceIndex /*index*/) override {}
};

Allocator& allocator() {
  static Allocator& allocator = *new Allocator;
  return allocator;
}

// ---- Operations ----

// Makes `device`, where it has a number, the current one while this lives.
class OnDevice {
 public:
  explicit OnDevice(std::optional<at::Device> device) : before_(current_device) {
    if (device && device->has_index()) current_device = device->index();
  }
  ~OnDevice() { current_device = before_; }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  c10::DeviceIndex before_;
};

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::ScalarType checked(std::optional<at::ScalarType> dtype) {
  TANDEM_CHECK(dtype != at::kDouble, "the pretend device has no float64");
  return dtype.value_or(at::kFloat);
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                 std::optional<at::Device> device, std::optional<bool> /*pinned*/,
                 std::optional<at::MemoryFormat> format) {
  const OnDevice on(device);
  return at::detail::empty_generic(size, &allocator(), kKeys, checked(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                         std::optional<bool> /*pinned*/) {
  const OnDevice on(device);
  return at::detail::empty_strided_generic(size, stride, &allocator(), kKeys, checked(dtype));
}

// Returns a tensor of the host over the same memory.
at::Tensor shown_to_host(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  if (tensor.numel() == 0) return at::empty(tensor.sizes(), tensor.scalar_type());
  return at::for_blob(on_host(tensor.data_ptr()), tensor.sizes())
      .strides(tensor.strides())
      .options(at::TensorOptions(tensor.scalar_type()))
      .make_tensor();
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool /*non_blocking*/) {
  at::Tensor source = shown_to_host(from);
  if (to.device() != from.device() && to.scalar_type() != from.scalar_type()) {
    const std::lock_guard lock(mutex());
    ++state().num_conversions;
    source = source.to(to.scalar_type());
  }
  shown_to_host(to).copy_(source);
  return to;
}

// ---- Faults that a test plants. ----

std::string fault;                              // plant()
constexpr double kNearlyOne = 1.0 + 0x1.0p-22;  // a few units in the last place

void spoil_rows(const at::Tensor& product) {
  constexpr int64_t kFirst = 200;
  if (fault == "rows" && product.size(0) > kFirst) {
    product.narrow(0, kFirst, product.size(0) - kFirst).mul_(kNearlyOne);
  }
}

at::Tensor rsqrt(const at::Tensor& x) {
  at::Tensor result = at::empty_like(x);
  at::Tensor shown = shown_to_host(result);
  at::rsqrt_out(shown, shown_to_host(x));
  if (fault == "all_rows" && x.size(0) > 1) shown.mul_(kNearlyOne);
  if (fault == "numbers") shown.mul_(1.01);
  return result;
}

// ---- Products of bfloat16, which LibTorch's CPU has with other roundings: sums in float32, rounded once. ----

at::Tensor float_on_host(const at::Tensor& tensor) { return shown_to_host(tensor).to(at::kFloat); }

at::Tensor& mm_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  at::Tensor shown = shown_to_host(out);
  if (out.scalar_type() == at::kFloat) {
    at::mm_out(shown, float_on_host(a), float_on_host(b));
  } else {
    shown.copy_(at::mm(float_on_host(a), float_on_host(b)));
  }
  spoil_rows(shown);
  return out;
}

at::Tensor& mm_dtype_out(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype, at::Tensor& out) {
  TANDEM_CHECK(dtype == out.scalar_type(), "a product of another dtype");
  return mm_out(a, b, out);
}

at::Tensor& addmm_dtype_out(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype,
                            const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  TANDEM_CHECK(dtype == at::kFloat && sum.is_same(out), "a sum of products that is not added to in float32");
  shown_to_host(out).addmm_(float_on_host(a), float_on_host(b), beta, alpha);
  return out;
}

// ---- All others are the CPU's. ----

// Replaces tensors of a device by what the host is shown of them, and the device by the host.
class Arguments {
 public:
  c10::IValue shown(const c10::IValue& value) {
    if (value.isTensor()) return show(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(show(tensor));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
        list.push_back(tensor ? std::optional(show(*tensor)) : std::nullopt);
      return list;
    }
    if (value.isDevice()) {
      if (!value.toDevice().is_cpu()) device_ = value.toDevice();
      return at::Device(at::kCPU);
    }
    return value;
  }
  // A new result of the host's kernel, copied to the device of the arguments.
  at::Tensor taken(const at::Tensor& result) const {
    if (!result.defined()) return result;
    at::Tensor copied = empty_strided(result.sizes(), result.strides(), result.scalar_type(), {}, device_, {});
    shown_to_host(copied).copy_(result);
    return copied;
  }

 private:
  at::Tensor show(const at::Tensor& tensor) {
    if (tensor.defined() && !tensor.is_cpu()) device_ = tensor.device();
    return shown_to_host(tensor);
  }

  std::optional<at::Device> device_;
};

// Returns the number of the argument that the operation writes and returns as result `i`.
size_t written_argument(const c10::FunctionSchema& schema, size_t i) {
  const c10::AliasInfo* const written = schema.returns()[i].alias_info();
  TANDEM_CHECK(written->isWrite(), "the pretend device cannot make a view by", schema.name());
  for (size_t a = 0; a < schema.arguments().size(); ++a) {
    const c10::AliasInfo* const info = schema.arguments()[a].alias_info();
    if (info != nullptr && *info == *written) return a;
  }
  TANDEM_CHECK(false, schema.name(), "returns no argument");
}

// Gives an argument without elements what a kernel made of it: such an argument is resized by who writes it.
void take_resized(const at::Tensor& argument, const at::Tensor& result, const Arguments& arguments) {
  if (argument.numel() == result.numel()) return;
  const at::Tensor taken = arguments.taken(result);
  argument.unsafeGetTensorImpl()->set_storage_keep_dtype(taken.storage());
  argument.unsafeGetTensorImpl()->set_sizes_and_strides(taken.sizes(), taken.strides());
}

// Calls the CPU's kernel of an operation on the same memory.
void call_on_host(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = operation.schema();
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(schema.arguments().size());
  const std::vector<c10::IValue> given(first, stack->end());
  Arguments arguments;
  std::transform(first, stack->end(), first, [&](const c10::IValue& value) { return arguments.shown(value); });
  // LibTorch takes the arguments off the stack before it copies several results that are arguments.
  const std::vector<c10::IValue> shown(first, stack->end());
  operation.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  const size_t num_results = schema.returns().size();
  for (size_t i = 0; i < num_results; ++i) {
    c10::IValue& result = (*stack)[stack->size() - num_results + i];
    if (schema.returns()[i].alias_info() != nullptr) {
      const size_t written = written_argument(schema, i);
      const c10::IValue& argument = given[written];
      if (argument.isTensor()) take_resized(argument.toTensor(), shown[written].toTensor(), arguments);
      result = argument;
    } else if (result.isTensor()) {
      result = arguments.taken(result.toTensor());
    } else if (result.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : result.toTensorVector()) list.push_back(arguments.taken(tensor));
      result = list;
    }
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("copy_", &copy);
  m.impl("rsqrt", &rsqrt);
  m.impl("mm.out", &mm_out);
  m.impl("mm.dtype_out", &mm_dtype_out);
  m.impl("addmm.dtype_out", &addmm_dtype_out);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&call_on_host>()); }

// ---- What LibTorch asks of a device ----

// There is one stream, and its work is done at once.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  at::DeviceType type() const override { return at::DeviceType::PrivateUse1; }
  at::Device exchangeDevice(at::Device device) const override {
    const at::Device before = getDevice();
    setDevice(device);
    return before;
  }
  at::Device getDevice() const override { return device(current_device); }
  void setDevice(at::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(at::Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  c10::Stream getStream(at::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(at::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return kNumDevices; }
  void record(void** /*event*/, const c10::Stream& /*stream*/, const c10::DeviceIndex /*index*/,
              const c10::EventFlag /*flag*/) const override {}
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override { return true; }
  bool queryStream(const c10::Stream& /*stream*/) const override { return true; }
  void synchronizeStream(const c10::Stream& /*stream*/) const override {}
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kNumDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current_device = index; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
};

const bool kIsRegistered = [] {
  c10::register_privateuse1_backend("npu");
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

void plant(const std::string& name) { fault = name; }

void reset(int64_t capacity_bytes) {
  release_unused();
  const std::lock_guard lock(mutex());
  TANDEM_CHECK(kIsRegistered && state().live.empty(), "something lives on the pretend device");
  state() = {};
  state().capacity_bytes = capacity_bytes;
}

int64_t live_bytes() {
  const std::lock_guard lock(mutex());
  return state().live_bytes;
}
int64_t held_bytes() {
  const std::lock_guard lock(mutex());
  return state().held_bytes;
}
int64_t peak_live_bytes() {
  const std::lock_guard lock(mutex());
  return state().peak_live_bytes;
}
int64_t num_conversions() {
  const std::lock_guard lock(mutex());
  return state().num_conversions;
}

void set_tensor_source(device::AllocatorHook* source) {
  TANDEM_CHECK(source == nullptr || current_source.load() == nullptr, "one source at a time");
  current_source.store(source, std::memory_order_release);
}

void release_unused() {
  const std::lock_guard lock(mutex());
  for (const auto& [bytes, address] : state().kept) {
    munmap(on_host(address), static_cast<size_t>(bytes));
    state().held_bytes -= bytes;
  }
  state().kept.clear();
}

}  // namespace tandem::pretend_device

namespace c10::impl {
// LibTorch's own devices do the same; the macro needs this namespace.
C10_REGISTER_GUARD_IMPL(PrivateUse1, tandem::pretend_device::Guard)
}  // namespace c10::impl
