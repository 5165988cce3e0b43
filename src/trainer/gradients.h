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

// Tensors are named by their place in store order. Each begins at a multiple of 64 bytes and has the packed shape, but
// for rows that other ranks own.
class Gradients {
 public:
  // Of the store it keeps shapes and device, no more.
  explicit Gradients(const weights::WeightStore& store, const Shard& shard = {});

  // Takes the memory where it was released, and forgets the gradients of the step before.
  void begin_step();
  // The accumulator: zeros when first asked for in a step. BugError before begin_step().
  const at::Tensor& accumulator(size_t tensor);
  // The same memory for one who fills it: not zeroed, but to be set when first asked for in a step, then added to.
  model::GradientTarget target(size_t tensor);
  // What was accumulated, without clearing anything. BugError where there is nothing: no step, or released since.
  const at::Tensor& last(size_t tensor) const;
  // Gives the memory back; tensors taken from here must be gone.
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
  int64_t num_elements_ = 0;  // of the allocation
  std::vector<Gradient> gradients_;
};

}  // namespace tandem::trainer
