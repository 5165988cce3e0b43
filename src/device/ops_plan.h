// The memory that operations take: the bytes that each one of ops.h allocates, by its name there, and the buffers that
// the CPU's operations keep for good. No torch.
#pragma once

#include <cstdint>
#include <string>

#include "base/size.h"

namespace tandem::device {

using base::Size;

// The implementation that computes. The CPU's own operations allocate their results and nothing else that grows with a
// batch; those in plain ATen (ops_aten.h) make float32 temporaries for the steps of their formulas. CUDA's kernels are
// for bfloat16 and allocate their results and what their comments say; ATen does what they do not cover.
enum class OpsFamily : uint8_t { kCpu, kAten, kCuda };
OpsFamily ops_family(const std::string& device);  // family of a value of --device

// This is a context of CUDA 13 on an H200, before anything is computed.
constexpr int64_t kCudaContextBytes = int64_t{620} << 20;

// Widths of a model, in elements.
struct OpsShape {
  Size hidden = 0, q_width = 0, kv_width = 0, mlp = 0, vocab = 0;
  Size num_heads = 0, num_kv_heads = 0, head_dim = 0;
};

// Bytes that one operation takes in addition to its arguments.
struct OpBytes {
  Size result = 0;  // bytes of the results
  Size most = 0;    // peak bytes while it runs, results included
};

// The shapes of library calls in plain ATen on a GPU. They are whole tiles of its kernels, and large enough to keep it
// busy; below 256 rows a product with a bfloat16 weight waits for the weight's bytes anyway.
struct AtenCallShape {
  int64_t linear_rows = 256;                // rows of a matrix product
  int64_t attention_tiles = 64;             // tiles of kAttentionTileRows rows and kAttentionTileKeys keys
  int64_t sum_elements = int64_t{1} << 22;  // elements of a sum of squares
};
constexpr int64_t kAttentionTileRows = 16, kAttentionTileKeys = 256;

// The size of one attention call. A tile has query rows of one sequence.
struct AttentionLoad {
  Size rows = 0;
  Size tiles = 0;
  Size longest_rows = 0;  // rows of the sequence that has most (backward)
  Size longest_keys = 0;  // keys of the longest sequence, in whole blocks
  Size sequences = 0;
  Size kv_blocks = 0;      // blocks of the cache, all of them full (backward)
  Size expanded_keys = 0;  // keys that all sequences see, shared ones once for each (backward)
};

// Plans for operands of `element_bytes` (the model dtype). It follows ops_aten.cc line by line for kAten and
// cuda/cuda_ops.cc for kCuda, apart from the bytes that rounding each tensor up adds.
class OpsPlan {
 public:
  OpsPlan(OpsFamily family, const OpsShape& shape, Size element_bytes);

  OpBytes linear(Size rows, Size inner, Size outer, Size out_bytes) const;
  // The residual is as wide as the hidden state.
  OpBytes linear_add(Size rows, Size inner) const;
  OpBytes linear_add_to(Size rows, Size inner, Size outer) const;
  // The gradient is in the model dtype, or in float32, which multiplies a float32 copy of the weights.
  OpBytes linear_grad_input(Size rows, Size inner, Size outer, Size out_bytes, bool is_float32 = false) const;
  OpBytes sum_parts(Size elements) const;
  OpBytes add(Size rows) const;
  OpBytes rms_norm(Size rows) const;
  OpBytes rms_norm_backward(Size rows) const;
  OpBytes qk_norm_rope(Size rows) const;
  OpBytes qk_norm_rope_backward(Size rows) const;
  OpBytes rope(Size rows) const;
  OpBytes rope_backward(Size rows) const;
  // The gradients are [rows, width]; add_bias() itself allocates nothing.
  OpBytes add_bias_backward(Size rows, Size width) const;
  OpBytes silu_mul(Size rows) const;
  OpBytes silu_mul_backward(Size rows) const;
  OpBytes kv_append(Size entries) const;
  OpBytes paged_attention(const AttentionLoad& load) const;
  OpBytes attention_backward(const AttentionLoad& load) const;
  // Logits [rows, vocab] in float32 are an argument and are not counted. In the backward they are [rows, columns], and
  // where the gradient takes their memory it is not counted either.
  OpBytes logprob(Size rows) const;
  OpBytes logprob_backward(Size rows, Size columns, bool has_entropy_gradient) const;
  // Returns the bytes of one element of the gradient of the logits that logprob_backward() returns.
  Size logits_gradient_bytes() const;
  OpBytes embedding_backward(Size rows, Size gradient_bytes) const;
  OpBytes adamw(Size elements) const;
  OpBytes sums_of_squares(Size elements, Size block_elements) const;
  // Returns whether attention is a kernel of CUDA's: then decode steps are recorded (Ops::can_record()).
  bool has_attention_kernel() const { return has_kernels() && (shape_.head_dim == 64 || shape_.head_dim == 128); }
  // Returns the bytes of prepare()'s results for an attention's rows, which last as long as the rows.
  Size prepared(const AttentionLoad& load, bool has_backward) const;

 private:
  // attention_backward() has two steps: dq, and the gradients in the cache's layout collected by token.
  OpBytes query_gradient(const AttentionLoad& load) const;
  OpBytes kv_gradient(const AttentionLoad& load) const;
  // Returns the bytes of an operation that takes `aten_most` at its peak where it is ATen's, and `scratch` besides its
  // result where it is CUDA's.
  OpBytes op(Size result, Size aten_most, Size scratch = 0) const;
  // This is FlashAttention-2's backward over keys that are expanded for each sequence.
  OpBytes flash_backward(const AttentionLoad& load) const;
  bool has_kernels() const { return family_ == OpsFamily::kCuda; }

  OpsFamily family_;
  OpsShape shape_;
  Size element_;
  Size cast_;  // bytes of an element of a float32 copy of an operand: 0 where it is float32 already
};

// These are buffers of kCpu: GemmRunner's packed rows, each thread's attention scratch, and the table of rotations.
// They are kept from the first large batch on.
struct CpuLoad {
  Size rows = 0;         // most rows of a batch
  Size logits_rows = 0;  // rows of a chunk of logits
  Size context = 0;      // most keys of a sequence
  bool trains = false;   // true: it runs the backward pass, too
};
Size cpu_kernel_bytes(const OpsShape& shape, const CpuLoad& load, Size num_threads);

}  // namespace tandem::device
