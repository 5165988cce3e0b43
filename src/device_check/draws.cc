#include "device_check/draws.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

namespace tandem::device_check {

at::Tensor int32s(const std::vector<int32_t>& values) {
  return at::from_blob(const_cast<int32_t*>(values.data()), {std::ssize(values)}, at::kInt).clone();
}

std::vector<float> Draws::numbers(int64_t count, double mean, double scale) {
  std::normal_distribution<double> normal(mean, scale);
  std::vector<float> result(static_cast<size_t>(count));
  for (float& number : result) number = static_cast<float>(normal(random_));
  return result;
}

template <typename Make>
at::Tensor Draws::drawn(const Make& make) {
  if (next_ == drawn_.size()) drawn_.push_back(to_device(make()));
  return drawn_[next_++];
}

at::Tensor Draws::normal(at::IntArrayRef shape, double mean, double scale) {
  return drawn([&] {
    std::vector<float> values = numbers(c10::multiply_integers(shape), mean, scale);
    return at::from_blob(values.data(), shape, at::kFloat).to(dtype_).to(dtype()).clone();
  });
}

at::Tensor Draws::floats(at::IntArrayRef shape, double scale) {
  return drawn([&] {
    std::vector<float> values = numbers(c10::multiply_integers(shape), 0.0, scale);
    return at::from_blob(values.data(), shape, at::kFloat).clone();
  });
}

at::Tensor Draws::positive(at::IntArrayRef shape, double scale) {
  return drawn([&] {
    std::vector<float> values = numbers(c10::multiply_integers(shape), 0.0, scale);
    return at::from_blob(values.data(), shape, at::kFloat).abs();
  });
}

at::Tensor Draws::ids(int64_t count, int64_t below) {
  return drawn([&] {
    std::vector<int32_t> values(static_cast<size_t>(count));
    for (int32_t& id : values) id = static_cast<int32_t>(integer(0, below - 1));
    return at::from_blob(values.data(), {count}, at::kInt).clone();
  });
}

int64_t Draws::integer(int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random_);
}

at::Tensor Draws::to_device(const at::Tensor& host) const { return host.to(ops_.device()); }

at::Tensor Draws::zeros(at::IntArrayRef shape) const {
  return at::zeros(shape, at::TensorOptions(at::kFloat).device(ops_.device()));
}

}  // namespace tandem::device_check
