// Plans the memory of operations: the bytes that each of ops.h allocates, by its name there, and the buffers that they
// keep for good. No torch.
#pragma once

#include <cstdint>

#include "base/size.h"

namespace tandem::device {

using base::Size;

// Holds the widths of a model, in elements.
struct OpsShape {
  Size hidden = 0, q_width = 0, kv_width = 0, mlp = 0, vocab = 0;
  Size experts = 0, chosen = 0;  // of a layer, of a token (device/experts.h); mlp is then an expert's width
  Size num_heads = 0, num_kv_heads = 0, head_dim = 0;
  bool norms_have_offset = false;  // Norm::offset
  bool is_quantised = false;       // the matrices of blocks
};

// Bytes that one operation takes in addition to its arguments.
struct OpBytes {
  Size result = 0;  // bytes of the results
  Size most = 0;    // peak bytes while it runs, results included
};

// Names the shapes of library calls in plain ATen on a GPU. They are whole tiles of its kernels, and large enough to
// keep it busy; below 256 rows a product with a bfloat16 weight waits for the weight's bytes anyway.
struct AtenCallShape {
  int64_t linear_rows = 256;                // of a matrix product
  int64_t attention_tiles = 64;             // of kAttentionTileRows rows and kAttentionTileKeys keys
  int64_t sum_elements = int64_t{1} << 22;  // of a sum of squares
  // Whether the library multiplies bfloat16 with float32 sums and rounds once. Where it does not, factors are
  // converted.
  bool multiplies_bfloat16 = false;
  // Whether index_add_ adds in any order. Then rows are added by index_put_, which sorts them first.
  bool index_add_is_unordered = false;
  // Whether the device computes in float64. Where it does not, sums of squares are made on the host.
  bool has_float64 = true;
  // Whether linear() is computed by the host's kernels: slow, and exact on any device.
  bool multiplies_on_host = false;
};
constexpr int64_t kAttentionTileRows = 16, kAttentionTileKeys = 256;

// Says how large one attention call is. A tile has query rows of one sequence.
struct AttentionLoad {
  Size rows = 0;
  Size tiles = 0;
  Size longest_rows = 0;  // rows of the sequence that has most (backward)
  Size longest_keys = 0;  // keys of the longest sequence, in whole blocks
  Size sequences = 0;
  Size kv_blocks = 0;      // blocks of the cache, all of them full (backward)
  Size expanded_keys = 0;  // keys that all sequences see, shared ones once for each (backward)
};

// Describes the largest batches of a run. They decide which buffers a backend keeps for good, from the first large
// batch on.
struct KeptLoad {
  Size rows = 0;         // of a batch, at most
  Size logits_rows = 0;  // of a chunk of logits
  Size context = 0;      // keys of a sequence
  bool trains = false;   // backward too
};

// The operations in plain ATen, for operands of `element_bytes` (the model dtype): ops_aten.cc line by line, to within
// what rounding each tensor up adds. They make float32 temporaries for the steps of their formulas. A backend with
// operations of its own derives from it, and overrides what these allocate otherwise.
class OpsPlan {
 public:
  OpsPlan(const OpsShape& shape, Size element_bytes);
  virtual ~OpsPlan() = default;

  virtual OpBytes linear(Size rows, Size inner, Size outer, Size out_bytes) const;
  // It adds onto a residual as wide as the hidden state.
  virtual OpBytes linear_add(Size rows, Size inner) const;
  virtual OpBytes linear_add_to(Size rows, Size inner, Size outer) const;
  // The gradient is in the model dtype, or in float32, which multiplies a float32 copy of the weights.
  virtual OpBytes linear_grad_input(Size rows, Size inner, Size outer, Size out_bytes, bool is_float32 = false) const;
  // A quantised matrix has all of its bfloat16 weights in memory while a product reads them.
  virtual OpBytes linear_quantised(Size rows, Size inner, Size outer, Size out_bytes) const;
  virtual OpBytes linear_quantised_add(Size rows, Size inner) const;
  virtual OpBytes linear_quantised_grad_input(Size rows, Size inner, Size outer, Size out_bytes) const;
  OpBytes dropout(Size rows, Size width) const;
  virtual OpBytes sum_parts(Size elements) const;
  virtual OpBytes add(Size rows) const;
  virtual OpBytes rms_norm(Size rows) const;
  virtual OpBytes rms_norm_backward(Size rows) const;
  virtual OpBytes qk_norm_rope(Size rows) const;
  virtual OpBytes qk_norm_rope_backward(Size rows) const;
  virtual OpBytes rope(Size rows) const;
  virtual OpBytes rope_backward(Size rows) const;
  // The gradients are [rows, width]; add_bias() itself allocates nothing.
  virtual OpBytes add_bias_backward(Size rows, Size width) const;
  virtual OpBytes silu_mul(Size rows) const;
  virtual OpBytes silu_mul_backward(Size rows) const;
  virtual OpBytes gelu_mul(Size rows) const;
  virtual OpBytes gelu_mul_backward(Size rows) const;
  // The operations of experts, for so many tokens; their places are rows * chosen. Where an operand has rows of tokens,
  // `gathers` says so, or `gathered_width` its width, because its rows may be copied to places.
  virtual OpBytes route(Size rows) const;
  virtual OpBytes route_backward(Size rows) const;
  virtual OpBytes linear_of_experts(Size rows, Size inner, Size outer, Size out_bytes, bool gathers) const;
  virtual OpBytes linear_of_experts_grad_input(Size rows, Size inner, Size outer, Size out_bytes, bool gathers) const;
  virtual OpBytes linear_of_experts_quantised(Size rows, Size inner, Size outer, Size out_bytes, bool gathers) const;
  virtual OpBytes linear_of_experts_quantised_grad_input(Size rows, Size inner, Size outer, Size out_bytes,
                                                         bool gathers) const;
  virtual OpBytes linear_of_experts_grad_weight(Size rows, Size gathered_width) const;
  virtual OpBytes sum_of_experts(Size rows, Size out_bytes) const;
  virtual OpBytes weighted_silu_backward(Size rows) const;
  virtual OpBytes kv_append(Size entries) const;
  virtual OpBytes paged_attention(const AttentionLoad& load) const;
  virtual OpBytes attention_backward(const AttentionLoad& load) const;
  // Logits [rows, vocab] in float32 are an argument and are not counted; in the backward they are [rows, columns], and
  // where the gradient takes their memory it is not counted either.
  virtual OpBytes logprob(Size rows) const;
  virtual OpBytes logprob_backward(Size rows, Size columns, bool has_entropy_gradient) const;
  // Bytes of one element of the gradient of the logits that logprob_backward() returns.
  virtual Size logits_gradient_bytes() const;
  virtual OpBytes embedding_backward(Size rows, Size gradient_bytes) const;
  virtual OpBytes adamw(Size elements) const;
  virtual OpBytes sums_of_squares(Size elements, Size block_elements) const;
  virtual bool has_attention_kernel() const { return false; }
  // Whether decode steps are recorded: Ops::can_record(), and of a sparse model Ops::can_record_experts().
  virtual bool records_steps() const { return false; }
  // Returns the bytes of what prepare() makes of an attention's rows, which lasts as long as the rows.
  virtual Size prepared(const AttentionLoad& load, bool has_backward) const;
  // Ops::prepared_bytes(), of a step that is recorded.
  virtual int64_t prepared_bytes(int64_t /*num_rows*/, int64_t /*num_sequences*/, int64_t /*max_blocks*/) const {
    return 0;
  }
  // Returns the bytes that an exchange of experts (device/expert_exchange.h) holds for as long as it lives, between
  // ranks of so many rows each.
  virtual Size shared_experts(Size /*most_rows*/, Size /*ranks*/) const { return 0; }
  // Buffers that operations keep for good, by their threads on the host.
  virtual Size kept(const KeptLoad& /*load*/, Size /*num_threads*/) const { return 0; }

 protected:
  // An operation that returns `result` bytes and in plain ATen takes `aten_most` at once.
  virtual OpBytes op(Size result, Size aten_most) const;
  // Returns the bytes of a copy of the rows of so many tokens for each of their places.
  virtual Size gathered(Size rows, Size width) const;
  // This is the second step of attention_backward(): the gradients in the cache's layout, collected by token.
  virtual OpBytes kv_gradient(const AttentionLoad& load) const;

  const OpsShape& shape() const { return shape_; }
  Size places(Size rows) const { return rows * shape_.chosen; }
  Size element() const { return element_; }

 private:
  // This is the first step of attention_backward(): dq.
  OpBytes query_gradient(const AttentionLoad& load) const;

  OpsShape shape_;
  Size element_;
  Size cast_;  // of a float32 copy of an operand: 0 where it is float32 already
};

}  // namespace tandem::device
