// Attention of CudaOps in bfloat16: the kernels of attention.h over tensors, and the gradient by those of
// attention_grad.h or, on GPUs that have none, by LibTorch's FlashAttention-2, which is deterministic when asked.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/cuda/attention/attention.h"
#include "device/cuda/staging.h"
#include "device/ops.h"

namespace tandem::device {

// The result of Ops::prepare(). The data that a forward and a backward need is computed when each is first called. The
// rows' tensors must hold their numbers until then.
class CudaRows {
 public:
  CudaRows(const AttentionRows& rows, at::Device device, cuda::Staging& staging);

  // Puts other rows, as many, into the same words on the device.
  void refill(const AttentionRows& rows);

  struct Forward {
    cuda::AttentionWork work;
    Tensor words;  // int32, on the device
    cuda::AttentionHeads heads;
  };
  const Forward& forward(const cuda::AttentionHeads& heads);

  struct Backward {
    Tensor cu_q, cu_k, slots, token_offsets, rows_of_token;  // int32 on the device, as in cuda::ExpandedRows
    int64_t max_q = 0, max_k = 0;
    cuda::AttentionHeads heads;
    // The work of the kernels of attention_grad.h, on the device, where the GPU has them.
    Tensor segments = {}, tiles = {}, items = {};  // int32: GradSegment, GradTile and GradItem one after the other
    int64_t num_tiles = 0, num_items = 0;
  };
  const Backward& backward(const cuda::AttentionHeads& heads);

  // Returns the rows as `aten`, the operations of ops_aten.h, prepares them, for that window.
  AttentionRows prepared_by(const Ops& aten, int64_t window);

 private:
  void fill(Forward& forward);
  Tensor on_device(const int32_t* values, int64_t count) const;

  AttentionRows rows_;
  const at::Device device_;
  cuda::Staging& staging_;
  std::optional<Forward> forward_;
  std::optional<Backward> backward_;
  std::optional<AttentionRows> aten_;
};

// Returns whether the kernels support these heads. kv_layer is [B, 2, G, K * kBlockTokens].
bool has_cuda_attention(const Tensor& q_THK, const Tensor& kv_layer);

// These do what Ops' operations of these names promise. They throw EnvironmentError where the GPU fails.
void cuda_kv_append(const Tensor& kv_layer, const Tensor& k_TGK, const Tensor& v_TGK, const Tensor& tokens,
                    const Tensor& slot_mapping);
Tensor cuda_attention(const Tensor& q_THK, const Tensor& kv_layer, CudaRows& rows, int64_t window,
                      const Tensor& lse_TH);
Ops::AttentionGrad cuda_attention_backward(const Tensor& dout_THK, const Tensor& q_THK, const Tensor& out_THK,
                                           const Tensor& lse_TH, const Tensor& kv_layer, CudaRows& rows,
                                           int64_t window);

}  // namespace tandem::device
