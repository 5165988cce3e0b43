#include "weights/adopt.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/GradMode.h>

#include <set>

#include "base/check.h"
#include "device/transfer.h"
#include "weights/layout_check.h"
#include "weights/safetensors.h"
#include "weights/staging.h"
#include "weights/tensor_file.h"

namespace tandem::weights {
namespace {

constexpr const char* kPlace = "the tensors given";

bool has_values(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_meta();
}

// safetensors names dtypes that LibTorch lacks, and the other way round; a message may use either name.
std::string dtype_name(at::ScalarType dtype) {
  const bool loadable = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  return loadable ? safetensors_dtype(dtype) : c10::toString(dtype);
}

void check_tensors(const HfTensors& tensors, const Layout& layout) {
  std::map<std::string, OfferedTensor> offered;
  for (const auto& [name, tensor] : tensors) {
    TANDEM_USER_CHECK(has_values(tensor), std::string(kPlace) + ": tensor " + quoted_name(name) +
                                              " has no values: it is undefined, sparse or on the meta device; give one "
                                              "that is in memory");
    offered.emplace(name, OfferedTensor{kPlace, dtype_name(tensor.scalar_type()), tensor.sizes().vec()});
  }
  check_offered(offered, layout, kPlace);
}

// Returns the slice's part of its HF tensor.
at::Tensor part_of(at::Tensor tensor, const Slice& slice) {
  const std::vector<int64_t> begin = slice.hf_begin();
  for (size_t d = 0; d < begin.size(); ++d) tensor = tensor.narrow(static_cast<int64_t>(d), begin[d], slice.shape[d]);
  return tensor;
}

}  // namespace

void move_to_host(HfTensors& tensors) {
  const c10::NoGradGuard no_grad;
  std::set<c10::DeviceType> left;
  for (auto& [name, tensor] : tensors) {
    if (!tensor.defined() || device::is_on_host(tensor) || tensor.is_meta()) continue;
    left.insert(tensor.device().type());
    tensor = tensor.to(at::kCPU);  // waits, then the device's tensor is freed
  }
  for (const c10::DeviceType type : left) c10::getDeviceAllocator(type)->emptyCache();
}

void adopt(HfTensors&& tensors, WeightStore& store) {
  const c10::NoGradGuard no_grad;  // tensors may be a module's parameters
  check_tensors(tensors, store.layout());
  for (const std::string& name : store.layout().ignored) tensors.erase(name);
  if (!store.has_storage()) {
    if (!device::is_host(store.device())) move_to_host(tensors);
    store.allocate();
  }
  Staging staging;
  for (const PackedTensor& packed : store.layout().tensors) {
    for (const Slice& slice : packed.slices) {
      const auto source = tensors.extract(slice.hf_name);
      staging.copy(store.slice(packed, slice), part_of(source.mapped(), slice));
    }
  }
}

}  // namespace tandem::weights
