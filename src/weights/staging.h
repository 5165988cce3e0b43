// Brings bytes that cannot be written to their place directly into a store, through one buffer of host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "device/thread_pool.h"

namespace tandem::weights {

// Owns kStagingBytes of host memory, which it takes when they are first needed. Whatever it loads and converts, it
// takes no other memory but what it fills. It is used from one thread at a time, and converts on those of a pool.
class Staging {
 public:
  explicit Staging(device::ThreadPool& threads) : threads_(threads) {}

  // Writes the elements of one piece, a flat tensor in host memory, which begins at element `first` of the whole.
  using Produce = std::function<void(const at::Tensor& piece, int64_t first)>;

  // Fills a contiguous tensor of any device with elements of dtype `from`, converted with one rounding. Elements that
  // go to host memory unconverted are written there in one piece; others come a piece at a time, each beginning at a
  // multiple of 64 elements.
  void fill(const at::Tensor& target, at::ScalarType from, const Produce& produce);

  // Produces so many elements of dtype `from`, in pieces like those, and gives each to `take` as float32.
  void stream(int64_t elements, at::ScalarType from, const Produce& produce,
              const std::function<void(std::span<const float> piece)>& take);

 private:
  // Returns that many elements of the buffer, from one of its bytes on.
  at::Tensor part(int64_t first_byte, int64_t elements, at::ScalarType dtype);

  // Writes the elements of a flat tensor to `to`, which it returns. Both are in host memory.
  at::Tensor converted(const at::Tensor& from, const at::Tensor& to);

  device::ThreadPool& threads_;
  std::unique_ptr<std::byte[]> buffer_;
};

}  // namespace tandem::weights
