// Drawn arguments of an operation, the same numbers for every device: a device gets them in the model's dtype, the
// reference the same numbers in float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <random>
#include <vector>

#include "device/ops.h"

namespace tandem::device_check {

// What the norms of all operations add to the mean square.
constexpr double kEps = 1e-6;

// Returns a copy on the host, int32 [values.size()].
at::Tensor int32s(const std::vector<int32_t>& values);

class Draws {
 public:
  // `dtype` is the model's: float32 or bfloat16. `ops` is borrowed.
  Draws(const device::Ops& ops, at::ScalarType dtype, bool is_reference, uint64_t seed)
      : ops_(ops), dtype_(dtype), is_reference_(is_reference), random_(seed) {}

  const device::Ops& ops() const { return ops_; }
  // The dtype that the operation gets and gives.
  at::ScalarType dtype() const { return is_reference_ ? at::kFloat : dtype_; }

  // Normal numbers that the model's dtype holds, in dtype().
  at::Tensor normal(at::IntArrayRef shape, double mean = 0.0, double scale = 1.0);
  // Normal numbers in float32.
  at::Tensor floats(at::IntArrayRef shape, double scale = 1.0);
  // Absolute values of such numbers.
  at::Tensor positive(at::IntArrayRef shape, double scale = 1.0);
  // int32 in [0, below).
  at::Tensor ids(int64_t count, int64_t below);
  int64_t integer(int64_t least, int64_t most);
  at::Tensor to_device(const at::Tensor& host) const;
  // The next arguments are those that were drawn first, with what an operation has written into them since.
  void begin_again() { next_ = 0; }
  // Returns zeros of float32.
  at::Tensor zeros(at::IntArrayRef shape) const;

 private:
  template <typename Make>
  at::Tensor drawn(const Make& make);
  std::vector<float> numbers(int64_t count, double mean, double scale);

  const device::Ops& ops_;
  const at::ScalarType dtype_;
  const bool is_reference_;
  std::mt19937_64 random_;
  std::vector<at::Tensor> drawn_;  // in the order of the calls
  size_t next_ = 0;                // of them
};

}  // namespace tandem::device_check
