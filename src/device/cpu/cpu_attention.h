// Attention over the paged cache on the CPU: rows of one sequence that lie together go to a thread, for one head of
// keys.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "device/cpu/kernels.h"
#include "device/ops.h"
#include "device/thread_pool.h"

namespace tandem::device::cpu {

// Borrows both. One call runs at a time.
class CpuAttention {
 public:
  CpuAttention(const KernelTable& table, ThreadPool& threads)
      : table_(table), threads_(threads), scratch_(static_cast<size_t>(threads.num_threads())) {}

  // These are Ops::kv_append(), paged_attention() and attention_backward().
  void append(const at::Tensor& kv_layer, const at::Tensor& k_TGK, const at::Tensor& v_TGK, const at::Tensor& tokens,
              const at::Tensor& slot_mapping);
  at::Tensor forward(const at::Tensor& q_THK, const at::Tensor& kv_layer, const AttentionRows& rows,
                     const at::Tensor& lse_TH);
  Ops::AttentionGrad backward(const at::Tensor& dout_THK, const at::Tensor& q_THK, const at::Tensor& out_THK,
                              const at::Tensor& lse_TH, const at::Tensor& kv_layer, const AttentionRows& rows);

 private:
  // Returns dq_THK and adds the gradients of the cached keys and values to dkv, which has the cache's layout, float32.
  at::Tensor query_gradient(const at::Tensor& dout_THK, const at::Tensor& q_THK, const at::Tensor& out_THK,
                            const at::Tensor& lse_TH, const at::Tensor& kv_layer, const AttentionRows& rows,
                            const at::Tensor& dkv);
  // Returns the transpose of append(): dk[t] and dv[t] [T, G, K] are the sums over the slots of token t, float32.
  std::pair<at::Tensor, at::Tensor> collected(const at::Tensor& dkv, const AttentionRows& rows, int64_t num_tokens,
                                              int64_t head_dim);
  float* scratch_for(const AttentionArgs& args, int64_t begin, int64_t end, int thread);

  const KernelTable& table_;
  ThreadPool& threads_;
  std::vector<std::vector<float>> scratch_;  // of each thread; it saves work
};

}  // namespace tandem::device::cpu
