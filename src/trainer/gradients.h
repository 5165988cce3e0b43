// The gradients of a weight store's packed tensors, as far as this rank owns them: float32, in one allocation on the
// store's device that a train phase takes and gives back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/linear.h"
#include "trainer/shard.h"
#include "weights/store.h"

namespace tandem::trainer {

// Tensors are named by their place in store order. Each begins at a multiple of 64 bytes and has the packed shape,
// without the rows that other ranks own.
class Gradients {
 public:
  // It keeps shapes and device of the store, no more.
  explicit Gradients(const weights::WeightStore& store, const Shard& shard = {});

  // Allocates the memory if it was released, and forgets the gradients of the previous step.
  void begin_step();
  // Returns the accumulator: zeros when first asked for in a step. Throws BugError before begin_step().
  const at::Tensor& accumulator(size_t tensor);
  // Returns the same memory for a caller that fills it: not zeroed, but to be set when first asked for in a step, then
  // added to.
  model::GradientTarget target(size_t tensor);
  // Returns the accumulated gradient without clearing anything. BugError if there is none: no step, or released since.
  const at::Tensor& last(size_t tensor) const;
  // Frees the memory; tensors taken from here must be gone.
  void release();

 private:
  struct Gradient {
    std::vector<int64_t> shape;
    int64_t num_elements = 0, first_element = 0;
    at::Tensor values = {};  // undefined while released
    bool is_filled = false;  // false: `values` holds an older step's, or anything
  };
  void allocate();

  at::TensorOptions options_;
  int64_t num_elements_ = 0;  // elements of the allocation
  std::vector<Gradient> gradients_;
};

}  // namespace tandem::trainer
