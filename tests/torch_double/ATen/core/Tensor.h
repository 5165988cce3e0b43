// A stand-in for LibTorch's tensors, for builds without it: what src/run's saving and resuming need of at::Tensor, as
// contiguous numbers in host memory: float32, or of the types that ranks exchange. Under ThreadSanitizer the
// files of src/run compile against this one, since LibTorch itself is not instrumented.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace at {

enum class ScalarType : int8_t { kFloat, kBFloat16, kByte, kDouble, kLong };
constexpr ScalarType kFloat = ScalarType::kFloat;
constexpr ScalarType kByte = ScalarType::kByte;
constexpr ScalarType kDouble = ScalarType::kDouble;
constexpr ScalarType kLong = ScalarType::kLong;
constexpr ScalarType kBFloat16 = ScalarType::kBFloat16;
enum class DeviceType : int8_t { kCpu };
constexpr DeviceType kCPU = DeviceType::kCpu;

class Device {
 public:
  Device(DeviceType type) : type_(type) {}  // implicit, as LibTorch's is
  DeviceType type() const { return type_; }
  bool is_cpu() const { return type_ == DeviceType::kCpu; }

 private:
  DeviceType type_;
};

class Sizes {
 public:
  Sizes(std::vector<int64_t> sizes) : sizes_(std::move(sizes)) {}  // implicit, as the library's is
  Sizes(std::initializer_list<int64_t> sizes) : sizes_(sizes) {}
  const std::vector<int64_t>& vec() const { return sizes_; }

 private:
  std::vector<int64_t> sizes_;
};

// Copies share their elements, as LibTorch's tensors do.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(const Sizes& sizes, ScalarType type = kFloat) : sizes_(sizes.vec()), type_(type) {
    // Doubles, so that elements of any type lie where they may.
    elements_ = std::make_shared<std::vector<double>>((nbytes() + sizeof(double) - 1) / sizeof(double));
  }

  bool defined() const { return elements_ != nullptr; }
  bool is_cpu() const { return true; }
  ScalarType scalar_type() const { return type_; }
  int64_t dim() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t size(int64_t axis) const { return sizes_.at(static_cast<size_t>(axis)); }
  Sizes sizes() const { return sizes_; }
  int64_t numel() const { return std::accumulate(sizes_.begin(), sizes_.end(), int64_t{1}, std::multiplies<>()); }
  size_t nbytes() const { return static_cast<size_t>(numel()) * element_bytes(); }
  void* data_ptr() const {
    return reinterpret_cast<std::byte*>(elements_->data()) + static_cast<size_t>(first_) * element_bytes();
  }
  void* mutable_data_ptr() const { return data_ptr(); }
  const void* const_data_ptr() const { return data_ptr(); }
  template <typename T>
  T* mutable_data_ptr() const {
    return static_cast<T*>(data_ptr());
  }
  template <typename T>
  const T* const_data_ptr() const {
    return static_cast<const T*>(data_ptr());
  }

  // Rows [begin, begin + length): dim 0 alone, which is contiguous.
  Tensor narrow(int64_t axis, int64_t begin, int64_t length) const {
    if (axis != 0 || begin < 0 || length < 0 || begin + length > size(0)) throw std::out_of_range("narrow");
    Tensor rows = *this;
    rows.first_ += size(0) == 0 ? 0 : begin * (numel() / size(0));
    rows.sizes_[0] = length;
    return rows;
  }
  void copy_(const Tensor& from) const {
    if (from.sizes_ != sizes_ || from.type_ != type_) throw std::invalid_argument("copy_");
    if (nbytes() > 0) std::memcpy(data_ptr(), from.data_ptr(), nbytes());
  }

 private:
  size_t element_bytes() const {
    if (type_ == kByte) return 1;
    return type_ == kDouble || type_ == kLong ? sizeof(double) : sizeof(float);
  }

  std::shared_ptr<std::vector<double>> elements_;
  std::vector<int64_t> sizes_;
  ScalarType type_ = kFloat;
  int64_t first_ = 0;
};

}  // namespace at
