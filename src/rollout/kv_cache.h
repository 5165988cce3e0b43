// Owns the bytes of the paged KV cache. It is block-major: a block holds K and V of all layers of one kind
// (rollout/kv_layout.h), so it lives in one place and can be moved, or its memory given away, as a whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/config.h"
#include "rollout/kv_allocator.h"
#include "rollout/kv_layout.h"

namespace tandem::rollout {

class KvCache {
 public:
  // `options` has the dtype of the model and its device. `memory` has room for the blocks and outlives the cache; with
  // null the cache allocates it. It is not touched before a block is first written.
  KvCache(const model::ModelConfig& config, int64_t num_blocks, const at::TensorOptions& options,
          std::byte* memory = nullptr);

  const KvLayout& layout() const { return layout_; }
  // Returns [num_tiles, 2, G, K * kBlockTokens], strided in dim 0, in the form that device::Ops takes. A block has one
  // tile of positions or more, KvLayout::tiles() of the layer's kind.
  const at::Tensor& layer(int64_t index) const { return layers_[static_cast<size_t>(index)]; }
  int64_t bytes() const { return static_cast<int64_t>(blocks_.nbytes()); }
  int64_t block_bytes() const { return bytes() / blocks_.size(0); }

  // Copies blocks in the order given.
  void copy_blocks(const std::vector<BlockCopy>& copies);

 private:
  KvLayout layout_;
  at::Tensor blocks_;  // [num_blocks, KvLayout::block_size]
  std::vector<at::Tensor> layers_;
};

}  // namespace tandem::rollout
