#include "weights/store.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/check.h"
#include "device/transfer.h"
#include "weights/tensor_file.h"
#include "weights/weights_plan.h"

namespace tandem::weights {
namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// Returns whether the bytes exceed the machine's memory. The kernel promises more memory than there is and kills the
// process that then uses it, so a size that can never fit is refused here.
bool exceeds_machine(int64_t bytes) {
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  return bytes / page_bytes >= sysconf(_SC_PHYS_PAGES);
}

at::Tensor allocate_on(at::Device device, int64_t elements, at::ScalarType dtype) {
  try {
    return at::empty({std::max<int64_t>(elements, 1)}, at::TensorOptions(dtype).device(device));
  } catch (const c10::OutOfMemoryError&) {
    throw EnvironmentError(
        fmt::format("the weights need {:.2f} GiB of memory on {}, which has not as much free; take a smaller model or "
                    "a free device",
                    static_cast<double>(elements * static_cast<int64_t>(c10::elementSize(dtype))) / (int64_t{1} << 30),
                    device.str()));
  }
}

at::Tensor allocate_on_host(int64_t elements, at::ScalarType dtype) {
  const int64_t bytes = std::max<int64_t>(elements, 1) * static_cast<int64_t>(c10::elementSize(dtype));
  // A small store does not deserve a huge page of its own.
  const bool huge = bytes >= kHugePageBytes;
  void* memory = nullptr;
  const bool allocated =
      !exceeds_machine(bytes) && posix_memalign(&memory, huge ? kHugePageBytes : kTensorAlignmentBytes, bytes) == 0;
  TANDEM_ENV_CHECK(allocated, fmt::format("the weights need {:.2f} GiB of memory, which this machine does not give; "
                                          "take a smaller model or a machine with more memory",
                                          static_cast<double>(bytes) / (int64_t{1} << 30)));
  // Decoding reads every weight once per token: with 4 KiB pages it would wait for address translation. The call is
  // only advice.
  if (huge) madvise(memory, bytes, MADV_HUGEPAGE);
  return at::from_blob(
      memory, {elements}, [](void* p) { std::free(p); }, at::TensorOptions().dtype(dtype));
}

}  // namespace

const at::Tensor& WeightsView::operator[](const std::string& name) const {
  const auto it = tensors_.find(name);
  TANDEM_CHECK(it != tensors_.end(), "no weight", name);
  return it->second;
}

const device::QuantisedMatrix* WeightsView::quantised(const std::string& name) const {
  const auto it = quantised_.find(name);
  return it == quantised_.end() ? nullptr : &it->second;
}

WeightsView WeightsView::with(const WeightsView& other) const {
  WeightsView both = *this;
  for (const auto& [name, tensor] : other.tensors_) {
    const auto [own, is_new] = both.tensors_.insert_or_assign(name, tensor);
    TANDEM_CHECK(is_new || tensors_.at(name).sizes() == tensor.sizes(), "two stores have another", name);
  }
  both.quantised_.insert(other.quantised_.begin(), other.quantised_.end());
  both.version_ = other.version_;
  return both;
}

void copy_common(const WeightStore& from, WeightStore& to) {
  std::set<std::string> names;
  for (const PackedTensor& packed : from.layout().tensors) names.insert(packed.name);
  for (const PackedTensor& packed : to.layout().tensors) {
    if (names.contains(packed.name)) to.tensor(packed.name).copy_(from.tensor(packed.name));
  }
}

WeightStore::WeightStore(Layout layout, at::ScalarType dtype, at::Device device, Storage /*none*/)
    : layout_(std::move(layout)), dtype_(dtype), device_(device) {
  TANDEM_CHECK(dtype == at::kFloat || dtype == at::kBFloat16, "weights are float32 or bfloat16");
}

WeightStore::WeightStore(Layout layout, at::ScalarType dtype, at::Device device)
    : WeightStore(std::move(layout), dtype, device, Storage::kNone) {
  allocate();
}

WeightStore WeightStore::without_storage(Layout layout, at::ScalarType dtype, at::Device device) {
  return {std::move(layout), dtype, device, Storage::kNone};
}

void WeightStore::allocate() {
  TANDEM_CHECK(!has_storage(), "the weights have storage already");
  const int64_t elements = bytes() / static_cast<int64_t>(c10::elementSize(dtype_));
  place_tensors(device::is_host(device_) ? allocate_on_host(elements, dtype_) : allocate_on(device_, elements, dtype_));
}

void WeightStore::attach(std::byte* data) {
  TANDEM_CHECK(!has_storage(), "the weights have storage already");
  TANDEM_CHECK(data != nullptr && reinterpret_cast<uintptr_t>(data) % kTensorAlignmentBytes == 0,
               "weights begin at a multiple of", kTensorAlignmentBytes, "bytes");
  TANDEM_CHECK(device::is_host(device_) || device_.has_index(), "memory lies on one device, not on any", device_.str());
  const int64_t elements = bytes() / static_cast<int64_t>(c10::elementSize(dtype_));
  const at::TensorOptions options = at::TensorOptions(dtype_).device(device_);
  place_tensors(at::for_blob(data, {elements}).options(options).target_device(device_).make_tensor());
}

void WeightStore::place_tensors(at::Tensor storage) {
  std::unordered_map<std::string, at::Tensor> tensors;
  int64_t offset = 0;
  std::unordered_map<std::string, device::QuantisedMatrix> quantised;
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype_));
  for (const PackedTensor& packed : layout_.tensors) {
    const int64_t stored = static_cast<int64_t>(tensor_bytes_in_store(packed, element_bytes)) / element_bytes;
    const at::Tensor tensor = packed.is_quantised()
                                  ? storage.narrow(0, offset, stored).view(at::kByte)
                                  : storage.narrow(0, offset, packed.num_elements()).view(packed.shape);
    const bool added = tensors.emplace(packed.name, tensor).second;
    TANDEM_CHECK(added, "two packed tensors named", packed.name);
    if (packed.is_quantised()) quantised[packed.name] = {.bytes = tensor, .parts = packed.quantised_parts()};
    offset += stored;
  }
  device_ = storage.device();  // with its index, even if none was given
  storage_ = std::move(storage);
  tensors_ = std::move(tensors);
  quantised_ = std::move(quantised);
}

int64_t WeightStore::bytes() const { return store_bytes(layout_, static_cast<int64_t>(c10::elementSize(dtype_))); }

WeightSpec WeightStore::info() const { return weight_spec(layout_, safetensors_dtype(dtype_)); }

const at::Tensor& WeightStore::storage() const {
  TANDEM_CHECK(has_storage(), "the weights are asked for before they have storage");
  return storage_;
}

const at::Tensor& WeightStore::tensor(const std::string& name) const {
  TANDEM_CHECK(has_storage(), "weight", name, "is asked for before the weights have storage");
  const auto it = tensors_.find(name);
  TANDEM_CHECK(it != tensors_.end(), "no weight", name);
  return it->second;
}

const device::QuantisedMatrix& WeightStore::quantised(const std::string& name) const {
  TANDEM_CHECK(has_storage(), "weight", name, "is asked for before the weights have storage");
  const auto it = quantised_.find(name);
  TANDEM_CHECK(it != quantised_.end(), "no quantised weight", name);
  return it->second;
}

at::Tensor WeightStore::slice(const PackedTensor& packed, const Slice& slice) const {
  TANDEM_CHECK(!packed.is_quantised(), packed.name, "is quantised");
  return tensor(packed.name).narrow(0, slice.row_begin, slice.shape[0]);
}

WeightsView WeightStore::view() const {
  TANDEM_CHECK(has_storage(), "a view is asked for before the weights have storage");
  TANDEM_CHECK(is_whole(), "a view is asked for while the weights are part old and part new");
  WeightsView view;
  view.tensors_ = tensors_;
  view.quantised_ = quantised_;
  view.version_ = version_;
  return view;
}

}  // namespace tandem::weights
