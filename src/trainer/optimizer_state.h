// The storage of AdamW's masters and moments, and the way an update reaches them: they lie beside the weights for good,
// or in pinned host memory from which each update streams them through the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "trainer/optimizer_offload.h"

namespace tandem::trainer {

// Holds the state of one parameter or a stretch of it: flat, float32, equally long.
struct StateTensors {
  at::Tensor master;  // the store's own tensor in a float32 store
  at::Tensor exp_avg, exp_avg_sq;
};

// Elements [begin, begin + count) of a parameter, on the store's device. They are valid, and may be written, until the
// `update` callback returns.
struct StatePiece {
  size_t parameter = 0;
  int64_t begin = 0, count = 0;
  StateTensors tensors;
};

class OptimizerState {
 public:
  virtual ~OptimizerState() = default;

  // Calls `update` for every element once, in store order; the work that it queues on the device may end after it
  // returns. When this returns, tensors() hold the written values, or will once the device is done. After an exception
  // no copy is in flight, and pieces for which `update` was called may hold the old numbers or the new ones.
  using Update = std::function<void(const StatePiece&)>;
  virtual void update(const Update& update) = 0;

  // Returns the tensors of every parameter, which live as long as this object, on the host or on the store's device.
  virtual std::vector<StateTensors> tensors() = 0;
};

// `weights` is every parameter of the store, flat, in store order, or the part of it that this rank owns, which may be
// empty; float32, or bfloat16 with masters beside it. Moments begin as zeros, masters as the current weights.
std::unique_ptr<OptimizerState> make_resident_state(std::vector<at::Tensor> weights);
// Makes the same on the host. Masters begin as the weights at the first call of either function, which waits for the
// memory and throws EnvironmentError when there is too little.
std::unique_ptr<OptimizerState> make_offloaded_state(std::vector<at::Tensor> weights, const OptimizerOffload& offload);

}  // namespace tandem::trainer
