// Attention of one sequence over its own KV cache: the simplest implementation of the contract. Tokens arrive in order,
// any number at a time. It is differentiable where the whole sequence comes at once.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "base/check.h"
#include "device/ops.h"
#include "model/attention.h"
#include "model/autograd.h"
#include "model/config.h"

namespace tandem::model {

inline at::Tensor int32_range(int64_t begin, int64_t end) {
  const at::Tensor result = at::empty({end - begin}, at::kInt);
  for (int64_t i = begin; i < end; ++i) result.mutable_data_ptr<int32_t>()[i - begin] = static_cast<int32_t>(i);
  return result;
}

class SequenceAttention final : public Attention {
 public:
  SequenceAttention(const device::Ops& ops, const ModelConfig& config, int64_t max_tokens, at::ScalarType dtype)
      : ops_(ops), lengths_(static_cast<size_t>(config.num_layers), 0) {
    const int64_t num_blocks = max_tokens / device::kBlockTokens + 1;
    for (int64_t layer = 0; layer < config.num_layers; ++layer)
      caches_.push_back(at::zeros({num_blocks, 2, config.num_kv_heads, config.head_dim * device::kBlockTokens}, dtype));
  }

  at::Tensor forward(int64_t layer, int64_t window, const at::Tensor& q_THK, const at::Tensor& k_TGK,
                     const at::Tensor& v_TGK) override {
    const int64_t begin = lengths_[static_cast<size_t>(layer)], num_tokens = q_THK.size(0);
    lengths_[static_cast<size_t>(layer)] += num_tokens;
    const at::Tensor cache = caches_[static_cast<size_t>(layer)];
    const at::Tensor tokens = int32_range(0, num_tokens), positions = int32_range(begin, begin + num_tokens);
    const device::AttentionRows rows{.sequence_of_row = at::zeros({num_tokens}, at::kInt),
                                     .row_position = positions,
                                     .block_table = int32_range(0, cache.size(0)).unsqueeze(0),
                                     .group_offsets = int32_range(0, 2) * num_tokens,
                                     .kv_tokens = tokens,
                                     .kv_slots = positions,
                                     .window = window};
    return differentiable({q_THK, k_TGK, v_TGK}, [&] {
      ops_.kv_append(cache, k_TGK, v_TGK, tokens, positions);
      const at::Tensor lse = at::empty({num_tokens, q_THK.size(1)}, at::kFloat);
      const at::Tensor out = ops_.paged_attention(q_THK, cache, rows, lse);
      const auto backward = [=, this, kept = out.detach()](const Tensors& d) -> Tensors {
        TANDEM_CHECK_EQ(begin, 0, "only a whole sequence is differentiable");
        const device::Ops::AttentionGrad grad = ops_.attention_backward(d[0], q_THK, kept, lse, cache, rows);
        return {grad.dq_THK, grad.dk_TGK, grad.dv_TGK};
      };
      return Piece{{out}, backward};
    })[0];
  }

 private:
  const device::Ops& ops_;
  std::vector<at::Tensor> caches_;  // by layer, written in place
  std::vector<int64_t> lengths_;    // tokens seen, by layer
};

}  // namespace tandem::model
