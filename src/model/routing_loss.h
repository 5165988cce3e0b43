// A term of the loss on how the routers of a sparse model spread their tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include "device/experts.h"

namespace tandem::model {

class RoutingLoss {
 public:
  virtual ~RoutingLoss() = default;
  // Returns the term's gradient of a layer's logits_TX, by which the router chose `routing`: float32 [T, X]. The
  // backward of the layer adds it to the gradient of the experts' weights, and calls this once for each forward that it
  // differentiates.
  virtual at::Tensor logits_gradient(const at::Tensor& logits_TX, const device::Routing& routing) = 0;
};

}  // namespace tandem::model
