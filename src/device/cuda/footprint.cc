#include "device/cuda/footprint.h"

#include <algorithm>

#include "device/block.h"
#include "device/cuda/attention/attention_grad_work.h"
#include "device/cuda/attention/attention_work.h"
#include "device/cuda/scratch.h"
#include "device/cuda/served_sizes.h"

namespace tandem::device::cuda {
namespace {

constexpr int64_t kFloatBytes = 4;

// The operations of cuda_ops.cc in bfloat16, which are kernels: they allocate their results, and beside them what
// scratch.h says.
class CudaOpsPlan final : public OpsPlan {
 public:
  CudaOpsPlan(const OpsShape& shape, Size element_bytes) : OpsPlan(shape, element_bytes), aten_(shape, element_bytes) {}

  // The product adds the residual itself.
  OpBytes linear_add(Size rows, Size /*inner*/) const override { return add(rows); }
  OpBytes linear_quantised_add(Size rows, Size inner) const override {
    return with_scratch(add(rows), inner * shape().hidden * element());
  }
  OpBytes rms_norm(Size rows) const override {
    return shape().norms_have_offset ? aten_.rms_norm(rows) : OpsPlan::rms_norm(rows);
  }
  OpBytes qk_norm_rope(Size rows) const override {
    return shape().norms_have_offset ? aten_.qk_norm_rope(rows) : OpsPlan::qk_norm_rope(rows);
  }
  OpBytes gelu_mul(Size rows) const override { return aten_.gelu_mul(rows); }
  OpBytes gelu_mul_backward(Size rows) const override { return aten_.gelu_mul_backward(rows); }
  OpBytes rms_norm_backward(Size rows) const override {
    if (shape().norms_have_offset) return aten_.rms_norm_backward(rows);
    return with_scratch(OpsPlan::rms_norm_backward(rows), partial_sums(rows, shape().hidden));
  }
  OpBytes qk_norm_rope_backward(Size rows) const override {
    if (shape().norms_have_offset) return aten_.qk_norm_rope_backward(rows);
    return with_scratch(OpsPlan::qk_norm_rope_backward(rows), partial_sums(rows, 2 * shape().head_dim));
  }
  OpBytes add_bias_backward(Size rows, Size width) const override { return scratch(partial_sums(rows, width)); }
  OpBytes route(Size rows) const override {
    if (!has_routing_kernels()) return aten_.route(rows);
    return with_scratch(OpsPlan::route(rows), order_places_scratch(rows, shape().experts) * sizeof(int32_t));
  }
  OpBytes route_backward(Size rows) const override {
    return has_routing_kernels() ? OpsPlan::route_backward(rows) : aten_.route_backward(rows);
  }
  // Without kernels, experts are multiplied one by one, and the result of one, perhaps of all tokens, is copied.
  OpBytes linear_of_experts(Size rows, Size inner, Size outer, Size out_bytes, bool gathers) const override {
    return with_scratch(OpsPlan::linear_of_experts(rows, inner, outer, out_bytes, gathers),
                        has_routing_kernels() ? Size(0) : rows * outer * out_bytes);
  }
  OpBytes linear_of_experts_grad_input(Size rows, Size inner, Size outer, Size out_bytes, bool gathers) const override {
    return with_scratch(OpsPlan::linear_of_experts_grad_input(rows, inner, outer, out_bytes, gathers),
                        has_routing_kernels() ? Size(0) : rows * inner * out_bytes);
  }
  OpBytes attention_backward(const AttentionLoad& load) const override {
    if (!has_attention_kernel()) return OpsPlan::attention_backward(load);
    // Our own kernels compute it where the GPU has them, or else FlashAttention-2.
    OpBytes bytes = flash_backward(load);
    bytes.most = std::max(bytes.most, most_of_own(load));
    return bytes;
  }
  OpBytes logprob(Size /*rows*/) const override { return {}; }
  OpBytes logprob_backward(Size rows, Size columns, bool /*has_entropy_gradient*/) const override {
    const Size result = rows * columns * element();
    return {.result = result, .most = result};
  }
  Size logits_gradient_bytes() const override { return element(); }
  OpBytes embedding_backward(Size rows, Size /*gradient_bytes*/) const override {
    return scratch(embedding_backward_scratch(rows));
  }
  OpBytes sums_of_squares(Size elements, Size block_elements) const override {
    return scratch((elements + block_elements - 1) / block_elements * sizeof(double));
  }

  bool has_attention_kernel() const override {
    const OpsShape& s = shape();
    return cuda::supports_attention(s.head_dim, s.num_heads, s.num_kv_heads);
  }
  bool records_steps() const override {
    const OpsShape& s = shape();
    return has_attention_kernel() && !s.norms_have_offset &&
           (s.experts == 0 || cuda::can_record_experts(s.experts, s.chosen, s.hidden, s.mlp));
  }
  Size shared_experts(Size most_rows, Size ranks) const override {
    return peer_experts_bytes(most_rows, ranks, shape().hidden, shape().chosen);
  }
  Size prepared(const AttentionLoad& load, bool has_backward) const override {
    if (!has_attention_kernel()) return OpsPlan::prepared(load, has_backward);
    // AttentionWork has items and rows, the block table and two counters; expand_rows() makes the rest.
    const Size table = load.sequences * load.longest_keys / kBlockTokens;
    const Size words = 6 * load.rows + table + 2;
    const Size expanded = has_backward ? 2 * load.expanded_keys + load.rows + 2 * load.sequences + 3 : Size(0);
    return (words + expanded + (has_backward ? backward_words(load) : Size(0))) * sizeof(int32_t);
  }
  int64_t prepared_bytes(int64_t num_rows, int64_t num_sequences, int64_t max_blocks) const override {
    return AttentionWork(num_rows, num_sequences, max_blocks).num_words * static_cast<int64_t>(sizeof(int32_t));
  }

 protected:
  OpBytes op(Size result, Size /*aten_most*/) const override { return {.result = result, .most = result}; }

 private:
  bool has_routing_kernels() const { return cuda::supports_routing(shape().experts, shape().chosen); }
  // A weight's gradient in float32, for each block of threads that adds up a part of it.
  static Size partial_sums(Size rows, Size width) { return num_partials(rows) * width * kFloatBytes; }
  static OpBytes with_scratch(const OpBytes& bytes, Size scratch) {
    return {.result = bytes.result, .most = bytes.most + scratch};
  }
  static OpBytes scratch(Size bytes) { return {.result = 0, .most = bytes}; }

  AttentionHeads heads() const {
    const OpsShape& s = shape();
    return {.group = s.num_heads / s.num_kv_heads, .num_kv_heads = s.num_kv_heads, .head_dim = s.head_dim};
  }
  static Size most_tiles(const AttentionLoad& load) { return load.rows / kGradRows + load.sequences; }
  // Words that say which block computes what of the gradient.
  Size backward_words(const AttentionLoad& load) const {
    const Size items = (load.expanded_keys / grad_keys(shape().head_dim) + load.sequences) * heads().num_kv_heads;
    return (load.sequences * sizeof(GradSegment) + most_tiles(load) * sizeof(GradTile) + items * sizeof(GradItem)) /
           sizeof(int32_t);
  }
  // Keys, values and their gradients, those of queries, and the scratch.
  Size most_of_own(const AttentionLoad& load) const {
    const OpsShape& s = shape();
    return 4 * load.expanded_keys * s.kv_width * element() + load.rows * s.q_width * element() +
           GradScratch(heads(), most_tiles(load)).bytes;
  }

  // at::_flash_attention_backward, deterministic, of as many keys as the sequences see in all; with at least as many
  // sequences and heads as multiprocessors its sum over parts is one part.
  OpBytes flash_backward(const AttentionLoad& load) const {
    constexpr int64_t kRowsPadding = 128, kMultiprocessors = 132;
    const OpsShape& s = shape();
    const Size keys = load.expanded_keys, padded_rows = load.rows + kRowsPadding * load.sequences;
    const Size blocks = std::max<Size>(1, load.sequences * s.num_heads);
    const Size parts = (kMultiprocessors + blocks - 1) / blocks;
    const Size expanded = 2 * keys * s.kv_width * element(), dq = load.rows * s.q_width * element();
    // Sums have columns for heads of a multiple of 32 numbers, above 128 of 64.
    const Size step = s.head_dim <= 128 ? 32 : 64, columns = (s.head_dim + step - 1) / step * step;
    const Size sums = parts * padded_rows * s.num_heads * columns * kFloatBytes;
    // There are the logarithms and the sums of out * dout; gradients of keys and values for each query head, then for
    // each of their own.
    const Size rows = (load.rows + padded_rows) * s.num_heads * kFloatBytes;
    const Size by_head = 2 * keys * s.q_width * element();
    const Size result = dq + 2 * load.rows * s.kv_width * element();
    return {.result = result, .most = 2 * expanded + dq + sums + rows + by_head};
  }

  const OpsPlan aten_;  // what plain ATen computes of the sizes that no kernel serves
};

// The kernels compute in bfloat16; float32 is plain ATen's.
std::unique_ptr<const OpsPlan> plan_ops(const OpsShape& shape, Size element_bytes) {
  if (element_bytes == kFloatBytes) return std::make_unique<OpsPlan>(shape, element_bytes);
  return std::make_unique<CudaOpsPlan>(shape, element_bytes);
}

}  // namespace

constinit const Footprint kFootprint = {
    .maps_memory = true,
    .has_quantised = true,
    .has_dropout = true,
    // Prompts are read 6 % faster than with 2,048, and with more no faster (bench/results/attention_forward.md).
    .batch_tokens = 8192,
    .context_bytes = kContextBytes,
    // Kernels as they are loaded, cuBLAS's workspaces, what LibTorch's allocator rounds up (404 MiB at most in
    // bench/results/memory_plan_cuda.md), and while a kernel of a product is chosen, the data for that.
    .library_bytes = int64_t{640} << 20,
    // NCCL took 0.96 GiB for two H200 (bench/results/many_devices.md).
    .communicator_bytes = int64_t{1} << 30,
    .plan_ops = plan_ops};

}  // namespace tandem::device::cuda
