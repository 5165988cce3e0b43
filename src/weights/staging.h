// How bytes come into a store when they cannot be written where they belong: through one buffer of host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace tandem::weights {

// Owns kStagingBytes of host memory, taken when they are first needed: whatever is loaded, whatever it is converted
// from and wherever it lies, that is all it takes beside what it fills. Used from one thread at a time.
class Staging {
 public:
  // Writes the elements of one piece, from element `first` of the whole on: a flat tensor in host memory.
  using Produce = std::function<void(const at::Tensor& piece, int64_t first)>;

  // Fills a contiguous tensor of any device with elements of dtype `from`, converted with one rounding. Those that
  // belong into host memory as they are go straight there, in one piece; others come a piece at a time, each beginning
  // at a multiple of 64 elements.
  void fill(const at::Tensor& target, at::ScalarType from, const Produce& produce);

  // The same from a tensor of any device, dtype and strides. On one device nothing is staged.
  void copy(const at::Tensor& target, const at::Tensor& source);

 private:
  // That many elements of the buffer, from one of its bytes on.
  at::Tensor part(int64_t first_byte, int64_t elements, at::ScalarType dtype);

  std::unique_ptr<std::byte[]> buffer_;
};

}  // namespace tandem::weights
