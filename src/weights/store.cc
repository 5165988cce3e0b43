#include "weights/store.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numbers>

#include "base/check.h"
#include "base/rng.h"
#include "weights/staging.h"
#include "weights/tensor_file.h"
#include "weights/weights_plan.h"

namespace tandem::weights {
namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// The kernel promises more memory than there is and kills whoever then uses it: what can never fit is refused here.
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
  // Small stores are not worth a huge page of their own.
  const bool huge = bytes >= kHugePageBytes;
  void* memory = nullptr;
  const bool allocated =
      !exceeds_machine(bytes) && posix_memalign(&memory, huge ? kHugePageBytes : kTensorAlignmentBytes, bytes) == 0;
  TANDEM_ENV_CHECK(allocated, fmt::format("the weights need {:.2f} GiB of memory, which this machine does not give; "
                                          "take a smaller model or a machine with more memory",
                                          static_cast<double>(bytes) / (int64_t{1} << 30)));
  // Decoding reads every weight once a token: with 4 KiB pages it would wait for address translation. Advice only.
  if (huge) madvise(memory, bytes, MADV_HUGEPAGE);
  return at::from_blob(
      memory, {elements}, [](void* p) { std::free(p); }, at::TensorOptions().dtype(dtype));
}

// Four normal deviates of one Philox block: Box and Muller (1958), twice.
std::array<float, 4> normals(uint64_t seed, uint64_t tensor, uint64_t block) {
  const std::array<uint32_t, 4> bits = base::philox(seed, tensor, block);
  std::array<float, 4> result;
  for (int pair = 0; pair < 2; ++pair) {
    // In (0, 1]: the logarithm of 0 does not exist.
    const float radius_draw = static_cast<float>((bits[2 * pair] >> 8) + 1) * 0x1.0p-24F;
    const float angle_draw = static_cast<float>(bits[2 * pair + 1] >> 8) * 0x1.0p-24F;
    const float radius = std::sqrt(-2.0F * std::log(radius_draw));
    const float angle = 2.0F * std::numbers::pi_v<float> * angle_draw;
    result[2 * pair] = radius * std::cos(angle);
    result[2 * pair + 1] = radius * std::sin(angle);
  }
  return result;
}

// Four numbers in [-1, 1) of one Philox block.
std::array<float, 4> uniforms(uint64_t seed, uint64_t tensor, uint64_t block) {
  const std::array<uint32_t, 4> bits = base::philox(seed, tensor, block);
  std::array<float, 4> result;
  for (int i = 0; i < 4; ++i) result[i] = static_cast<float>(bits[i] >> 8) * 0x1.0p-23F - 1.0F;
  return result;
}

using Draws = std::array<float, 4> (*)(uint64_t seed, uint64_t tensor, uint64_t block);

// Elements of a tensor from `first` on, which is a multiple of four, in host memory.
template <typename Element>
void fill_drawn(const at::Tensor& part, int64_t first, Draws draws_of, float scale, uint64_t seed, uint64_t stream) {
  Element* data = part.data_ptr<Element>();
  const int64_t elements = part.numel();
  constexpr int64_t kGrainBlocks = 4096;
  at::parallel_for(0, (elements + 3) / 4, kGrainBlocks, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const std::array<float, 4> draws = draws_of(seed, stream, static_cast<uint64_t>(first / 4 + block));
      for (int64_t i = 0; i < 4 && 4 * block + i < elements; ++i) {
        data[4 * block + i] = static_cast<Element>(scale * draws[i]);
      }
    }
  });
}

void fill_drawn(const at::Tensor& tensor, Draws draws_of, float scale, uint64_t seed, uint64_t stream,
                Staging& staging) {
  staging.fill(tensor, tensor.scalar_type(), [&](const at::Tensor& piece, int64_t first) {
    if (piece.scalar_type() == at::kFloat) {
      fill_drawn<float>(piece, first, draws_of, scale, seed, stream);
    } else {
      fill_drawn<at::BFloat16>(piece, first, draws_of, scale, seed, stream);
    }
  });
}

}  // namespace

const at::Tensor& WeightsView::operator[](const std::string& name) const {
  const auto it = tensors_.find(name);
  TANDEM_CHECK(it != tensors_.end(), "no weight", name);
  return it->second;
}

WeightsView WeightsView::with(const WeightsView& other) const {
  WeightsView both = *this;
  for (const auto& [name, tensor] : other.tensors_) {
    TANDEM_CHECK(both.tensors_.emplace(name, tensor).second, "two stores have a weight", name);
  }
  both.version_ = other.version_;
  return both;
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
  place_tensors(device_.is_cpu() ? allocate_on_host(elements, dtype_) : allocate_on(device_, elements, dtype_));
}

void WeightStore::attach(std::byte* data) {
  TANDEM_CHECK(!has_storage(), "the weights have storage already");
  TANDEM_CHECK(data != nullptr && reinterpret_cast<uintptr_t>(data) % kTensorAlignmentBytes == 0,
               "weights begin at a multiple of", kTensorAlignmentBytes, "bytes");
  TANDEM_CHECK(device_.is_cpu() || device_.has_index(), "memory lies on one device, not on any", device_.str());
  const int64_t elements = bytes() / static_cast<int64_t>(c10::elementSize(dtype_));
  const at::TensorOptions options = at::TensorOptions(dtype_).device(device_);
  place_tensors(at::for_blob(data, {elements}).options(options).target_device(device_).make_tensor());
}

void WeightStore::place_tensors(at::Tensor storage) {
  std::unordered_map<std::string, at::Tensor> tensors;
  int64_t offset = 0;
  for (const PackedTensor& packed : layout_.tensors) {
    const int64_t elements = packed.num_elements();
    const bool added = tensors.emplace(packed.name, storage.narrow(0, offset, elements).view(packed.shape)).second;
    TANDEM_CHECK(added, "two packed tensors named", packed.name);
    offset += aligned_elements(elements, static_cast<int64_t>(c10::elementSize(dtype_)));
  }
  device_ = storage.device();  // with its index, where none was asked for
  storage_ = std::move(storage);
  tensors_ = std::move(tensors);
}

int64_t WeightStore::bytes() const { return store_bytes(layout_, static_cast<int64_t>(c10::elementSize(dtype_))); }

WeightSpec WeightStore::info() const { return weight_spec(layout_, safetensors_dtype(dtype_)); }

const at::Tensor& WeightStore::tensor(const std::string& name) const {
  TANDEM_CHECK(has_storage(), "weight", name, "is asked for before the weights have storage");
  const auto it = tensors_.find(name);
  TANDEM_CHECK(it != tensors_.end(), "no weight", name);
  return it->second;
}

at::Tensor WeightStore::slice(const PackedTensor& packed, const Slice& slice) const {
  return tensor(packed.name).narrow(0, slice.row_begin, slice.shape[0]);
}

WeightsView WeightStore::view() const {
  TANDEM_CHECK(has_storage(), "a view is asked for before the weights have storage");
  WeightsView view;
  view.tensors_ = tensors_;
  view.version_ = version_;
  return view;
}

void initialize_random(WeightStore& store, double initializer_range, uint64_t seed, uint64_t first_stream) {
  if (!store.has_storage()) store.allocate();
  Staging staging;
  uint64_t stream = first_stream;
  for (const PackedTensor& packed : store.layout().tensors) {
    const at::Tensor& tensor = store.tensor(packed.name);
    switch (packed.init) {
      case Init::kNormal:
        fill_drawn(tensor, normals, static_cast<float>(initializer_range), seed, stream, staging);
        break;
      case Init::kUniform: {
        const double bound = 1.0 / std::sqrt(static_cast<double>(packed.shape.back()));
        fill_drawn(tensor, uniforms, static_cast<float>(bound), seed, stream, staging);
        break;
      }
      case Init::kOnes: tensor.fill_(1); break;
      case Init::kZeros: tensor.fill_(0); break;
    }
    ++stream;
  }
}

}  // namespace tandem::weights
