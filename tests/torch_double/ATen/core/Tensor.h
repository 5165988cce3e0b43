// A stand-in for LibTorch's tensors, for builds without it: what src/run's saving and resuming need of at::Tensor, as
// contiguous float32 in host memory. Under ThreadSanitizer and libFuzzer the files of src/run compile against this one,
// since LibTorch itself is not instrumented.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace at {

enum class ScalarType : int8_t { kFloat, kBFloat16 };
constexpr ScalarType kFloat = ScalarType::kFloat;
constexpr ScalarType kBFloat16 = ScalarType::kBFloat16;
enum class DeviceType : int8_t { kCpu };
constexpr DeviceType kCPU = DeviceType::kCpu;

class Device {
 public:
  Device(DeviceType type) : type_(type) {}  // implicit, as LibTorch's is
  DeviceType type() const { return type_; }

 private:
  DeviceType type_;
};

class Sizes {
 public:
  Sizes(std::vector<int64_t> sizes) : sizes_(std::move(sizes)) {}  // likewise
  const std::vector<int64_t>& vec() const { return sizes_; }

 private:
  std::vector<int64_t> sizes_;
};

// Copies share their elements, as LibTorch's tensors do.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(const Sizes& sizes) : sizes_(sizes.vec()) {
    elements_ = std::make_shared<std::vector<float>>(static_cast<size_t>(numel()));
  }

  bool defined() const { return elements_ != nullptr; }
  bool is_cpu() const { return true; }
  ScalarType scalar_type() const { return kFloat; }
  int64_t dim() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t size(int64_t axis) const { return sizes_.at(static_cast<size_t>(axis)); }
  Sizes sizes() const { return sizes_; }
  int64_t numel() const { return std::accumulate(sizes_.begin(), sizes_.end(), int64_t{1}, std::multiplies<>()); }
  size_t nbytes() const { return static_cast<size_t>(numel()) * sizeof(float); }
  void* data_ptr() const { return elements_->data() + first_; }

  // Rows [begin, begin + length): dim 0 alone, which is contiguous.
  Tensor narrow(int64_t axis, int64_t begin, int64_t length) const {
    if (axis != 0 || begin < 0 || length < 0 || begin + length > size(0)) throw std::out_of_range("narrow");
    Tensor rows = *this;
    rows.first_ += size(0) == 0 ? 0 : begin * (numel() / size(0));
    rows.sizes_[0] = length;
    return rows;
  }
  void copy_(const Tensor& from) const {
    if (from.sizes_ != sizes_) throw std::invalid_argument("copy_");
    const auto* data = static_cast<const float*>(from.data_ptr());
    std::copy(data, data + numel(), static_cast<float*>(data_ptr()));
  }

 private:
  std::shared_ptr<std::vector<float>> elements_;
  std::vector<int64_t> sizes_;
  int64_t first_ = 0;
};

}  // namespace at
