// The interface through which a model's forward reaches keys and values. The engine brings a paged KV cache, the
// trainer a packed batch; both end in the same kernel (device::Ops::paged_attention).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tandem::model {

class Attention {
 public:
  virtual ~Attention() = default;
  // Returns out_THK for this layer's tokens, whose q and k are already normalised and rotated. `window` is the layer's
  // (LayerAttention::window). It is differentiable when gradients are on and the implementation supports it.
  virtual at::Tensor forward(int64_t layer, int64_t window, const at::Tensor& q_THK, const at::Tensor& k_TGK,
                             const at::Tensor& v_TGK) = 0;
};

}  // namespace tandem::model
