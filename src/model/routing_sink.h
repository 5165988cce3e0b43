// Receives what the routers of a sparse model choose in a forward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "device/experts.h"

namespace tandem::model {

class RoutingSink {
 public:
  virtual ~RoutingSink() = default;
  // A layer's router chose `routing` by logits_TX, float32. They may be read in work that is queued before this
  // returns.
  virtual void routed(int64_t layer, const at::Tensor& logits_TX, const device::Routing& routing) = 0;
};

}  // namespace tandem::model
